"""What one ingress of a node notes for all of them."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import cast

import pytest

from app.metrics.node_sampler import NodeSampler
from deployments.core.counts import CPU, CpuState, Label
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder


async def _sampled(sampler: NodeSampler, counters: NodeCounters) -> CpuState:
    """Run a sampler until there is a sample."""
    task = asyncio.create_task(sampler.run())
    try:
        async with asyncio.timeout(30):
            while not (row := cast(CpuState, counters.totals().row(Label(CPU, "", 0)))).total_bytes:
                await asyncio.sleep(0.01)
        return row
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_one_ingress_of_a_node_samples_and_another_goes_on(tmp_path: Path) -> None:
    first, second = (NodeCounters(NodeFolder("node", tmp_path)) for _ in range(2))
    samplers = [NodeSampler(each, 0.01, cpu=True, gpu=True) for each in (first, second)]
    seen = asyncio.run(_sampled(samplers[0], second))
    assert 0 < seen.used_bytes < seen.total_bytes and 0 <= seen.utilization_ppm <= 1_000_000
    assert not second.speaks_for_node()
    first.close()
    assert asyncio.run(_sampled(samplers[1], second)).total_bytes == seen.total_bytes
    second.close()


def test_a_thread_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, 0

    def refuse_once(self: threading.Thread) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    counters = NodeCounters(NodeFolder("node", tmp_path))
    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    assert asyncio.run(_sampled(NodeSampler(counters, 0.01, cpu=True, gpu=False), counters)).total_bytes
    assert refused > 1
    counters.close()
