"""What Serve's controller does otherwise in a cluster of Eagleray's, by what is no public API of Serve's.

`tests/deployments/test_serve_controller.py` fails loudly on a Ray that changed any of it. Nothing else may import this:
it loads the controller's own modules, for 0.2 s.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from ray.serve._private import controller
from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.common import DeploymentStatus
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.deployment_state import DeploymentStateManager
from ray.serve.schema import ApplicationStatus

from deployments.replica.worker_wakes import wake_main_thread_less

STEADY_PERIOD_S: Final = 0.5
"""How long Serve's controller sleeps between two looks at applications in which nothing changes."""
STEADY_AFTER_S: Final = 5.0
_SOON_S: Final = 1.0
_SOON_PERIOD_S: Final = 0.02
_AT_REST: Final = (
    ApplicationStatus.RUNNING,
    ApplicationStatus.DEPLOY_FAILED,
    DeploymentStatus.HEALTHY,
    DeploymentStatus.DEPLOY_FAILED,
)


def calm_serve_controller() -> None:
    """Have Serve's controller, in whose process this runs, do less while nothing changes, and change things sooner.

    Its main thread wakes less often (`wake_main_thread_less`), and its control loop looks when `_Pace` says. What Serve
    was told to change it writes down, and changes in its next looks.
    """
    wake_main_thread_less()
    pace = _Pace()

    def paced(look: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def look_in_time(self: Any, *args: Any) -> None:
            with pace.look(self):
                await look(self, *args)

        return look_in_time

    def telling(save: Callable[[Any], None]) -> Callable[[Any], None]:
        def save_and_tell(self: Any) -> None:
            save(self)
            pace.tell()

        return save_and_tell

    async def sleep(delay_s: float) -> None:
        await (pace.sleep(delay_s) if delay_s == controller.CONTROL_LOOP_INTERVAL_S else asyncio.sleep(delay_s))

    for actor_class in controller.ServeController.__subclasses__():  # the one that Ray has made of it
        actor_class.run_control_loop_step = paced(actor_class.run_control_loop_step)
    for states in (ApplicationStateManager, DeploymentStateManager):
        states.save_checkpoint = telling(states.save_checkpoint)
    controller.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    _keep_actor_classes()


class _Pace:
    """When Serve's control loop looks at all deployments.

    A look costs some 5 ms and three requests to the GCS; what is deployed takes three to be done. While something
    changes, and for `STEADY_AFTER_S` from then on, looks are as frequent as Serve has them; in the second after Serve
    was told to change something they are more so, for a quarter of the loop's time at most; and rare while nothing
    changes, but for the first look after Serve was told.
    """

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self._told_s = self._changed_s = time.monotonic()
        self._look_s = 0.0

    def tell(self) -> None:
        """Look soon: there is something to change."""
        self._told_s = time.monotonic()
        self._told.set()

    @contextlib.contextmanager
    def look(self, state: Any) -> Iterator[None]:
        """Note how long a look takes, and whether the controller's `state` changes."""
        begin_s = time.monotonic()
        self._told.clear()
        yield
        now_s = time.monotonic()
        self._look_s = now_s - begin_s
        if not _is_steady(state):
            self._changed_s = now_s

    async def sleep(self, delay_s: float) -> None:
        """Wait for the time of the next look, `delay_s` where it is Serve's."""
        now_s = time.monotonic()
        if now_s - max(self._told_s, self._changed_s) > STEADY_AFTER_S:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), max(STEADY_PERIOD_S, delay_s))
        elif now_s - self._told_s < _SOON_S:
            await asyncio.sleep(min(max(_SOON_PERIOD_S, 3 * self._look_s), delay_s))
        else:
            await asyncio.sleep(delay_s)


def _keep_actor_classes() -> None:
    """Have replicas of one name be of one class, however often they are deployed.

    Serve makes a class for each deployment. What there ever was stays: 22 KiB in Ray's tables, and 70 KiB in every
    process that has had a handle to such a replica.
    """
    kept: dict[str, Any] = {}
    make = DeploymentInfo.actor_def.fget

    def actor_def(self: Any) -> Any:
        self._cached_actor_def = kept.get(self.actor_name)
        kept[self.actor_name] = make(self)
        return kept[self.actor_name]

    DeploymentInfo.actor_def = property(actor_def)


def _is_steady(state: Any) -> bool:
    """Whether Serve's controller has applications, and nothing is under way in any of them."""
    applications = state.application_state_manager.list_app_statuses().values()
    deployments = state.deployment_state_manager.get_deployment_statuses()
    return (
        bool(applications)
        and all(application.status in _AT_REST for application in applications)
        and all(deployment.status in _AT_REST for deployment in deployments)
    )
