"""Ensembles that serve as they were until the steps that they are loaded anew for can be asked."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from deployments.replica.changes import Key
from deployments.replica.host_router import HostRouter
from deployments.replica.hosted_model import HostedModel

AskedStep = tuple[str, int, str]
"""Model, version and interface."""


class LateLoads:
    """Waits beside all else that a host does, until its router reaches the steps as they are to be."""

    def __init__(self, loop: asyncio.AbstractEventLoop, router: HostRouter) -> None:
        self._loop = loop
        self._router = router
        self._waiting: dict[Key, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def fits(self, steps: Sequence[AskedStep]) -> bool:
        """Whether all the steps that serve anywhere can be asked so; an ensemble that waits here cannot."""
        waiting = {name for name, _ in self._waiting}
        return all(step[0] not in waiting and self._router.fits(*step) for step in steps)

    def waits(self, key: Key) -> bool:
        """Whether an ensemble waits for its steps."""
        return key in self._waiting

    def begin(self, key: Key, steps: Sequence[AskedStep], load: Callable[[], Awaitable[None]]) -> None:
        """Load an ensemble when its steps fit, unless it is given up before."""
        self._waiting[key] = self._loop.create_task(self._load(key, steps, load))

    async def _load(self, key: Key, steps: Sequence[AskedStep], load: Callable[[], Awaitable[None]]) -> None:
        while not self.fits(steps):
            await self._changed.wait()
        del self._waiting[key]  # from here on it is a load as others are
        await load()
        self.routes_changed()  # though it may have failed: others waited for it

    def routes_changed(self) -> None:
        """Look again; to be called when other models can be asked than before."""
        self._changed.set()
        self._changed = asyncio.Event()

    def give_up(self) -> None:
        """Load none of them: something else is wanted."""
        for task in self._waiting.values():
            task.cancel()
        self._waiting.clear()


def asked_steps(data: dict[str, Any]) -> list[AskedStep]:
    """Return what an ensemble, as `HostedModel.to_dict` writes it, asks of its steps."""
    hosted = HostedModel.from_dict(data)
    interfaces = {name: signature.interface for name, signature in hosted.step_signatures().items()}
    return [
        (step.model_name, int(step.model_version), interfaces[step.model_name])
        for step in hosted.package.config.ensemble_scheduling.step
        if step.model_name in interfaces
    ]
