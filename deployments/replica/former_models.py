"""What served as model versions until others were loaded in their place, as far as it may be wanted again."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from deployments.core.core import Core
from deployments.replica.changes import Key
from deployments.replica.hosted_model import KEEPS_FORMER
from deployments.replica.served_model import ServedModel
from protocol.infer import InferRequest

ASKED_S: Final = 5.0
"""How long one is kept after its last request: an ensemble that waits for other steps may ask it meanwhile."""
_POLL_S: Final = 0.1


class FormerModels:
    """Keeps one of each version while that is on trial, and one that had another interface as long as it is asked.

    `gone` hears of each that is given nothing more.
    """

    def __init__(self, core: Core, now_s: Callable[[], float]) -> None:
        self.gone: Callable[[ServedModel], None] = lambda _: None
        self._core = core
        self._now_s = now_s
        self._kept: dict[Key, ServedModel] = {}
        self._may_come_back: dict[Key, ServedModel] = {}

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

    def keep(self, served: ServedModel, revision: str | None) -> bool:
        """Keep what has been replaced if it is of the revision that may come back; returns whether it is."""
        keeps = served.model.package.revision == revision
        if keeps:
            self._may_come_back[served.model_name, served.version] = served
        return keeps

    def take_back(self, key: Key, digest: str) -> ServedModel | None:
        """Return what a version was before its trial, to serve as that again, if it has this digest."""
        kept = self._may_come_back.get(key)
        return self._may_come_back.pop(key) if kept is not None and kept.digest == digest else None

    def past_trial(self, wanted: Mapping[Key, dict[str, Any]]) -> list[ServedModel]:
        """Return what is kept no longer as it is on trial no more, and is not wanted again."""
        over = [
            key
            for key, kept in self._may_come_back.items()
            if key in wanted
            and wanted[key].get(KEEPS_FORMER) != kept.model.package.revision
            and wanted[key]["digest"] != kept.digest
        ]
        return [self._may_come_back.pop(key) for key in over]

    def drop(self, key: Key) -> ServedModel | None:
        """Keep nothing of a version any more; returns what it was before its trial."""
        self._kept.pop(key, None)
        return self._may_come_back.pop(key, None)
