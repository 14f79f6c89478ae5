"""What waits for the thread that writes traces is bounded."""

import errno
import threading
from collections.abc import Sequence

import pytest

from app.trace.collector import MAX_WAITING_BYTES, Collector, Item
from app.trace.sampler import Sampler, Sampling
from protocol.trace import MAX_TENSOR_BYTES, MAX_TENSORS_BYTES, TENSORS, Trace, TracedTensor, new_trace
from tests.serving import wait_until

SAMPLER = Sampler(Sampling(TENSORS, 1))
MAX_LARGE = MAX_WAITING_BYTES // MAX_TENSORS_BYTES


def large() -> Trace:
    trace = new_trace(TENSORS)
    step = trace.child("step")
    for _ in range(MAX_TENSORS_BYTES // MAX_TENSOR_BYTES):
        step.add_tensor(TracedTensor("A", "X", "UINT8", (MAX_TENSOR_BYTES,), bytes(MAX_TENSOR_BYTES)))
    return trace


def test_large_traces_are_dropped_before_they_fill_the_memory() -> None:
    may_go = threading.Event()
    gone: list[int] = []

    def consume(items: Sequence[Item]) -> None:
        may_go.wait()
        gone.append(len(items))

    collector = Collector(consume, lambda: None)
    try:
        for _ in range(MAX_LARGE + 3):
            collector.put(large(), SAMPLER)
        assert collector.dropped_count == 3
        collector.put(new_trace(TENSORS), SAMPLER)
        assert collector.dropped_count == 3, "one without tensors has room"
        may_go.set()
        wait_until(lambda: sum(gone) == MAX_LARGE + 1, "all to be taken")
        more = iter(large, None)
        wait_until(lambda: _taken(collector, next(more)), "room for more")
    finally:
        may_go.set()
        collector.close(30)


def _taken(collector: Collector, trace: Trace) -> bool:
    dropped_count = collector.dropped_count
    collector.put(trace, SAMPLER)
    return collector.dropped_count == dropped_count


def test_whoever_wakes_the_thread_has_it_look_again() -> None:
    looks = 0

    def consume(items: Sequence[Item]) -> None:
        nonlocal looks
        looks += not items

    collector = Collector(consume, lambda: None)
    collector.put(new_trace(TENSORS), SAMPLER)

    def looked() -> bool:
        collector.wake()
        return looks > 0

    wait_until(looked, "the thread to look")
    collector.close(30)
    assert collector.dropped_count == 0


def test_a_thread_that_cannot_be_started_is_tried_again_with_the_next_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gone: list[int] = []
    collector = Collector(lambda items: gone.append(len(items)), lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        collector.put(new_trace(TENSORS), SAMPLER)
    collector.put(new_trace(TENSORS), SAMPLER)
    collector.close(10.0)
    assert sum(gone) == 2


def test_a_disk_without_room_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """It may be the disk of the log too."""
    now_s = 0.0
    written = 0

    def consume(items: Sequence[Item]) -> None:
        nonlocal written
        written += len(items)
        raise OSError(errno.ENOSPC, "has no room for more", "/traces/t.json")

    collector = Collector(consume, lambda: None, lambda: now_s)

    def put(until: int) -> None:
        while written < until:
            before = written
            collector.put(new_trace(TENSORS), SAMPLER)
            wait_until(lambda before=before: written > before, "the thread to take it", poll_s=0.001)

    put(3)
    now_s = 60.0
    put(4)
    collector.close(30)
    why = "[Errno 28] has no room for more: '/traces/t.json'"
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [f"traces could not be written, {count} so far: {why}" for count in (1, 4)]
    assert all(record.exc_info is None for record in caplog.records)
