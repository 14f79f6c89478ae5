"""What served as model versions until their interfaces changed, for ensembles that are made for those."""

import asyncio
from collections.abc import Callable
from typing import Final

from deployments.core.core import Core
from deployments.replica.served_model import ServedModel
from protocol.infer import InferRequest

ASKED_S: Final = 5.0
"""How long one is kept after its last request: an ensemble that waits for other steps may ask it meanwhile."""
_POLL_S: Final = 0.1


class FormerModels:
    """Keeps one of each version, as long as it is asked; `gone` hears of each that is given nothing more."""

    def __init__(self, core: Core, now_s: Callable[[], float]) -> None:
        self.gone: Callable[[ServedModel], None] = lambda _: None
        self._core = core
        self._now_s = now_s
        self._kept: dict[tuple[str, int], ServedModel] = {}

    async def until_unasked(self, served: ServedModel) -> None:
        """Return when a version that has another interface now is asked no more, or there is another one to keep."""
        key = served.model_name, served.version
        self._kept[key] = served
        asked_s, submit = self._now_s(), served.submit_request

        def take(request: InferRequest) -> None:
            nonlocal asked_s
            asked_s = self._now_s()
            submit(request)

        served.submit_request = served.model.submit = take
        while self._kept.get(key) is served and self._now_s() - asked_s < ASKED_S:
            await asyncio.sleep(_POLL_S)
        if self._kept.get(key) is served:
            del self._kept[key]
        self._core.forget_former(served.model)
        self.gone(served)

    def drop(self, name: str, version: int) -> None:
        """Keep nothing of a version any more."""
        self._kept.pop((name, version), None)
