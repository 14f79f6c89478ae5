"""Copies a share of a model's requests to one of its versions, and drops the answers."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from deployments.core.counts import ShadowCounts
from deployments.core.version_choice import Turns, chance
from deployments.lane.frames import Buffer
from deployments.lane.remote_regions import ClientRegions, names_region
from deployments.lane.sink import VersionTarget
from protocol.errors import ServingError
from protocol.sequence_mark import SequenceMark

MAX_INFLIGHT: Final = 256
MAX_INFLIGHT_BYTES: Final = 64 << 20


class Shadow:
    """One version that gets copies; a copy that finds too many under way is not made.

    A copy leaves in the loop's next turn, behind the request itself. What would write into the shared memory of the
    client is not copied. Sequences are copied as a whole, and the version knows them as copies (`COPIED`).
    """

    def __init__(self, version: int, percent: float, counts: ShadowCounts, regions: ClientRegions | None) -> None:
        self.version = version
        self.percent = percent
        self.inflight_count = 0
        self.inflight_bytes = 0
        self._counts = counts
        self._regions = regions
        self._turns = Turns()

    def offer(
        self,
        target: VersionTarget,
        parts: Sequence[Buffer],
        json_length: int | None,
        wire: int,
        mark: SequenceMark | None,
    ) -> None:
        """Copy a request that was sent a moment ago, or leave it."""
        point = self._turns.next() if mark is None else chance(mark.sequence_id, "shadow")
        if point >= self.percent / 100:
            return
        size = sum(map(len, parts))
        regions = self._regions
        private = regions is None or not regions.registered or not names_region(parts, json_length, wire)
        room = self.inflight_count < MAX_INFLIGHT and self.inflight_bytes + size <= MAX_INFLIGHT_BYTES
        if not (private and room and target.ready):
            self._counts.dropped_count += 1
            return
        self.inflight_count += 1
        self.inflight_bytes += size
        submit = partial(target.submit, parts, json_length, _Copy(self, size), wire, copied=True)
        asyncio.get_running_loop().call_soon(submit)

    def done(self, size: int, *, failed: bool) -> None:
        """Count a copy that was answered."""
        self.inflight_count -= 1
        self.inflight_bytes -= size
        if failed:
            self._counts.failure_count += 1
        else:
            self._counts.success_count += 1


class _Copy:
    """The sink of a copy."""

    __slots__ = ("_shadow", "_size")

    def __init__(self, shadow: Shadow, size: int) -> None:
        self._shadow = shadow
        self._size = size

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        if final:
            self._shadow.done(self._size, failed=False)

    def on_error(self, error: ServingError) -> None:
        self._shadow.done(self._size, failed=True)
