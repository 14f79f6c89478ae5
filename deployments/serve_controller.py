"""What Serve's controller does otherwise in a cluster of Eagleray's, by what is no public API of Serve's.

`tests/deployments/test_serve_controller.py` fails loudly on a Ray that changed any of it. Nothing else may import this:
it loads the controller's own modules, for 0.2 s.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
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
_AT_REST: Final = (
    ApplicationStatus.RUNNING,
    ApplicationStatus.DEPLOY_FAILED,
    DeploymentStatus.HEALTHY,
    DeploymentStatus.DEPLOY_FAILED,
)


def calm_serve_controller() -> None:
    """Have Serve's controller, in whose process this runs, do less while nothing changes.

    Its main thread wakes less often (`wake_main_thread_less`), and so does its control loop: a look at all deployments
    costs some 5 ms and three requests to the GCS. While a deployment or an application changes, and for
    `STEADY_AFTER_S` from then on, looks are as frequent as Serve has them. The first one comes at once: Serve writes
    down what it was told to change, and changes it at its next look.
    """
    wake_main_thread_less()
    told = asyncio.Event()
    changed_s = time.monotonic()

    def paced(look: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        async def look_and_choose_pace(self: Any, *args: Any) -> None:
            nonlocal changed_s
            told.clear()
            await look(self, *args)
            if told.is_set() or not _is_steady(self):
                changed_s = time.monotonic()

        return look_and_choose_pace

    async def sleep(delay_s: float) -> None:
        if delay_s != controller.CONTROL_LOOP_INTERVAL_S or time.monotonic() - changed_s <= STEADY_AFTER_S:
            await asyncio.sleep(delay_s)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), max(STEADY_PERIOD_S, delay_s))

    def telling(save: Callable[[Any], None]) -> Callable[[Any], None]:
        def save_and_tell(self: Any) -> None:
            save(self)
            told.set()

        return save_and_tell

    for actor_class in controller.ServeController.__subclasses__():  # the one that Ray has made of it
        actor_class.run_control_loop_step = paced(actor_class.run_control_loop_step)
    for states in (ApplicationStateManager, DeploymentStateManager):
        states.save_checkpoint = telling(states.save_checkpoint)
    controller.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    _keep_actor_classes()


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
