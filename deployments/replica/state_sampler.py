"""Notes the present state of a process's models and lanes for the metrics, now and then and never per request."""

import asyncio
from typing import Final, cast

from deployments.core.counts import LANES, STATE, Label, LaneCounts, ModelState, Rows
from deployments.core.request_meter import RequestMeters
from deployments.lane.fleet import Fleet
from deployments.lane.traffic import LANE_TRAFFIC
from deployments.replica.changes import Key
from deployments.replica.model_host import ModelHost

_NOTHING: Final = (0,) * len(ModelState._fields_)


class StateSampler:
    """Writes rows that others read; a version that is gone gets zeros."""

    def __init__(
        self, host: ModelHost, fleet: Fleet, rows: Rows, interval_s: float, meters: RequestMeters | None = None
    ) -> None:
        self._host = host
        self._fleet = fleet
        self._rows = rows
        self._interval_s = interval_s
        self._meters = meters
        self._noted: set[Key] = set()

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            self.sample()
            await asyncio.sleep(self._interval_s)

    def sample(self) -> None:
        """Note the state of now."""
        host = self._host
        known = {*host.served, *({*host.failures, *host.loading} - {*host.copies})}
        for key in self._noted - known:
            self._note(key, *_NOTHING)
        for key in known:
            served = host.served.get(key)
            if served is None:
                loading = key in host.loading
                self._note(key, 0, 0, 0, int(loading), int(not loading))
                continue
            executing = 0 if served.model.pool is None else served.model.pool.executing_count
            counts = key not in host.copies  # as a replica
            ready = int(counts and served.ready)
            self._note(key, served.model.oldest_age_ns, executing, ready, 0, int(counts and not served.ready))
        self._noted = known
        lanes = cast(LaneCounts, self._rows.row(Label(LANES, "", 0)))
        lanes.socket_bytes, lanes.shared_bytes = LANE_TRAFFIC.socket_bytes, LANE_TRAFFIC.shared_bytes
        lanes.open_count = self._fleet.lane_count
        if self._meters is not None:
            self._meters.sample()

    def _note(self, key: Key, oldest_ns: int, executing: int, ready: int, loading: int, unavailable: int) -> None:
        row = cast(ModelState, self._rows.row(Label(STATE, *key)))
        row.oldest_age_ns, row.executing_count, row.ready_count = oldest_ns, executing, ready
        row.loading_count, row.unavailable_count = loading, unavailable
