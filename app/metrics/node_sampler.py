"""Notes what a node's processors, memory and GPUs do, for the whole node."""

import asyncio
import logging
from typing import Any, Final

import psutil

from deployments.core.counts import CPU, GPU, CpuState, GpuState, Label
from deployments.replica.node_counters import NodeCounters
from deployments.serve_internals import GpuReader

logger = logging.getLogger(__name__)

_NAMES: Final = tuple(str(field[0]) for field in GpuState._fields_)[1:]


class NodeSampler:
    """One of a node's ingresses samples, the others find its rows; when it dies, another one goes on."""

    def __init__(self, counters: NodeCounters, interval_s: float, *, cpu: bool, gpu: bool) -> None:
        self._counters = counters
        self._interval_s = interval_s
        self._cpu = cpu
        self._gpus = GpuReader() if gpu else None

    async def run(self) -> None:
        """Sample for ever."""
        if self._cpu:
            psutil.cpu_percent(interval=None)  # the first call has nothing to compare with
        while True:
            try:
                if self._counters.speaks_for_node():
                    await asyncio.to_thread(self._sample)
            except (OSError, RuntimeError) as error:  # the latter: a thread cannot be started
                logger.warning("the state of the node is not noted: %s", error)
            await asyncio.sleep(self._interval_s)

    def _sample(self) -> None:
        if self._cpu:
            memory, row = psutil.virtual_memory(), self._row(CPU)
            row.total_bytes, row.used_bytes = memory.total, memory.used
            row.utilization_ppm = round(psutil.cpu_percent(interval=None) * 10_000)
        for number, (uuid, state) in enumerate(self._gpus.read().items() if self._gpus is not None else ()):
            row = self._row(GPU, uuid, number)
            for name in _NAMES:
                setattr(row, name, state.get(name, 0))
            row.known = sum(1 << place for place, name in enumerate(_NAMES) if name in state)

    def _row(self, kind: str, name: str = "", number: int = 0) -> Any:
        row = self._counters.row(Label(kind, name, 0, number))
        assert isinstance(row, CpuState | GpuState)
        return row
