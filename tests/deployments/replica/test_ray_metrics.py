"""What Ray is told of latencies."""

import asyncio
import threading
from pathlib import Path

import pytest

from deployments.core.counts import CLIENT_ERROR, BucketCount, Label
from deployments.core.duration_buckets import BOUNDS_NS
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.ray_metrics import RayMetrics, sampled


def buckets(**counts: int) -> list[int]:
    found = [0] * (len(BOUNDS_NS) + 1)
    for place, count in counts.items():
        found[int(place[1:])] = count
    return found


def test_a_few_latencies_are_all_told() -> None:
    assert list(sampled(buckets(_4=2, _7=1))) == [0.75, 0.75, 4.0]


@pytest.mark.parametrize("total", [100, 12_345, 10**7])
def test_a_sample_of_latencies_keeps_their_proportions(total: int) -> None:
    told = list(sampled(buckets(_4=total * 9 // 10, _12=total - total * 9 // 10)))
    assert len(told) == 20 and told.count(0.75) == 18 and max(told) > 50


def test_a_latency_beyond_the_last_bound_is_told_as_twice_that() -> None:
    assert list(sampled(buckets(_24=1))) == [75_000.0]


def test_errors_that_are_yet_to_be_counted_are_no_error(tmp_path: Path) -> None:
    counters = NodeCounters(NodeFolder("node", tmp_path))
    metrics = RayMetrics(counters, "replica", "eagleray", 1.0)
    row = counters.row(Label(CLIENT_ERROR, "m", 1, 503))
    assert isinstance(row, BucketCount)
    metrics.tell()
    row.count += 1
    metrics.tell()
    counters.close()


def test_counts_of_a_version_that_was_gone_are_told_from_zero_on(tmp_path: Path) -> None:
    counters = NodeCounters(NodeFolder("node", tmp_path))
    metrics = RayMetrics(counters, "replica", "eagleray", 1.0)
    for earlier, count in enumerate((5, 1, 3)):
        cells = counters.row(Label(CLIENT_ERROR, "m", 1, 503)).cells
        assert cells[0] == 0
        cells[0] = count
        metrics.tell()
        assert metrics._seen == {Label(CLIENT_ERROR, "m", 1, 503): [count]}
        del cells
        counters.give_back(lambda *_: True)
        if earlier:
            metrics.tell()
            assert not metrics._seen
    counters.close()


def test_ray_is_told_later_when_there_is_no_thread_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, label = threading.Thread.start, Label(CLIENT_ERROR, "m", 1, 503)

    def refuse_once(self: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        telling = asyncio.create_task(metrics.run())
        async with asyncio.timeout(10):
            while label not in metrics._seen and not telling.done():
                await asyncio.sleep(0.001)
        telling.cancel()

    counters = NodeCounters(NodeFolder("node", tmp_path))
    metrics = RayMetrics(counters, "replica", "eagleray", 0.001)
    counters.row(label).cells[0] = 1
    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    asyncio.run(run())
    assert metrics._seen == {label: [1]}
    counters.close()
