"""What a trace looks like after its request has gone over a lane."""

import asyncio
from typing import Any

import pytest

from deployments.lane import trace_frames
from deployments.lane.trace_frames import identity, read_identity, records, take_records, wall_ahead_ns
from protocol.errors import QueueFull
from protocol.trace import CONTEXT, TENSORS, TIMESTAMPS, Trace, TracedTensor, new_trace
from tests.deployments.lane.harness import Lanes, Replica, Sink
from tests.deployments.lane.test_lane import on_loop


def send(lanes: Lanes, body: bytes, trace: Trace) -> tuple[Sink, Any]:
    target = lanes.fleet.target("echo")
    assert target is not None
    sink = Sink()
    return sink, target.submit((body,), None, sink, trace=trace)


async def held(lanes: Lanes, trace: Trace) -> tuple[Sink, Replica, Replica]:
    """Send a request to one of two replicas that hold what they get, and return that one first."""
    for replica in lanes.replicas:
        replica.model.hold = True
    sink, _ = send(lanes, b"x", trace)
    await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
    one, other = lanes.replicas
    return (sink, one, other) if one.model.held else (sink, other, one)


@pytest.mark.parametrize("size", [2, 300_000], ids=["by-socket", "in-shared-memory"])
@on_loop
async def test_the_replicas_part_comes_back_with_the_answer(size: int) -> None:
    async with Lanes() as lanes:
        await lanes.open_arenas()
        trace = new_trace(TIMESTAMPS)
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sink, _ = send(lanes, body, trace)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.responses == [body]
        names = [name for name, _ in sorted(trace.timestamps, key=lambda each: each[1])]
        assert names == ["LANE_SEND", "REQUEST_START", "REQUEST_END", "LANE_RECEIVE"]
        assert trace.attributes == {"replica": "r0", "near": True, "seen_by": "echo"}
        (child,) = trace.children
        assert (child.parent_id, child.model_name) == (trace.id, "called")
        plain, _ = lanes.send(body)
        await asyncio.wait_for(plain.done.wait(), 5)
        assert plain.responses == [body]


@on_loop
async def test_a_traced_stream_ends_with_its_trace() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        trace = new_trace(TIMESTAMPS)
        sink, _ = send(lanes, b"x", trace)
        await lanes.until(lambda: bool(model.held))
        model.stream(3)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.responses == [b"x"] * 3
        assert [name for name, _ in trace.timestamps].count("REQUEST_END") == 1


@on_loop
async def test_a_request_that_goes_again_is_one_trace_that_says_so() -> None:
    async with Lanes(2) as lanes:
        trace = new_trace(TIMESTAMPS)
        sink, first, second = await held(lanes, trace)
        first.die()
        await lanes.until(lambda: bool(second.model.held))
        second.model.release()
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.responses == [b"x"]
        assert trace.attributes["attempts"] == 2
        assert [name for name, _ in trace.timestamps].count("LANE_SEND") == 2


@on_loop
async def test_a_request_that_another_replica_answers_has_not_failed() -> None:
    async with Lanes(2) as lanes:
        trace = new_trace(TIMESTAMPS)
        sink, first, second = await held(lanes, trace)
        request = first.model.held.pop()
        assert request.trace is not None
        request.trace.fail("full")
        request.reply(request, QueueFull("full"))
        await lanes.until(lambda: bool(second.model.held))
        second.model.release()
        await asyncio.wait_for(sink.done.wait(), 5)
        assert (sink.responses, sink.error, trace.attributes["attempts"]) == ([b"x"], None, 2)
        assert "error" not in trace.attributes


@on_loop
async def test_a_traced_request_that_cannot_be_understood_is_answered() -> None:
    async with Lanes() as lanes:
        sink, _ = send(lanes, b"bad", new_trace(TIMESTAMPS))
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.error is not None and sink.error.message == "a bad request"


def test_the_identity_is_all_that_travels_with_a_request() -> None:
    trace = new_trace(TIMESTAMPS | TENSORS | CONTEXT)
    read, body = read_identity(identity(trace) + b"body")
    assert (read.trace_id, read.id, read.flags, bytes(body)) == (trace.trace_id, trace.id, trace.flags, b"body")
    assert read.traceparent() == trace.traceparent() == f"00-{trace.trace_id:032x}-{trace.id:016x}-01"


def known() -> Trace:
    trace = Trace(TENSORS, 1, 2)
    trace.mark("REQUEST_START", 100)
    child = trace.child("step", 3)
    child.mark("REQUEST_START", 110)
    child.add_tensor(TracedTensor("TENSOR_QUEUE_INPUT", "X", "UINT8", (2,), b"ab"))
    grandchild = child.child("deeper")
    grandchild.add_tensor(TracedTensor("TENSOR_QUEUE_INPUT", "Y", "UINT8", (1, 3), b"cde"))
    return trace


def test_clocks_of_other_nodes_are_set_by_wall_time() -> None:
    here_ns, there_ns = 5_000, 9_000
    near, far = Trace(TENSORS, 1, 2), Trace(TENSORS, 1, 2)
    body = b"".join(records(known(), there_ns))
    take_records(near, body, None)
    take_records(far, body, here_ns)
    assert near.timestamps == [("REQUEST_START", 100)]
    assert far.timestamps == [("REQUEST_START", 4_100)]
    assert far.children[0].timestamps == [("REQUEST_START", 4_110)]


def test_descendants_and_their_tensors_come_as_they_were() -> None:
    taken, sent = Trace(TENSORS, 1, 2), known()
    take_records(taken, b"".join(records(sent, 0)), None)
    (child,), (sent_child,) = taken.children, sent.children
    assert (child.id, child.parent_id, child.model_name, child.version) == (sent_child.id, 2, "step", 3)
    assert child.tensors == sent_child.tensors
    assert child.children[0].tensors == sent_child.children[0].tensors
    assert child.children[0].parent_id == child.id


def test_wall_time_is_read_where_the_thread_was_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([0, 50_000_000, 0, 1_000])  # the first reading is interrupted for 50 ms
    now = [0]

    def monotonic_ns() -> int:
        now[0] += next(steps)
        return now[0]

    monkeypatch.setattr(trace_frames.time, "monotonic_ns", monotonic_ns)
    monkeypatch.setattr(trace_frames.time, "time_ns", lambda: now[0] + 7_000_000_000)
    assert abs(wall_ahead_ns() - 7_000_000_000) < 1_000


@on_loop
async def test_a_traced_request_of_a_sequence_goes_where_its_sequence_is() -> None:
    async with Lanes(2) as lanes:
        target: Any = lanes.fleet.target("echo")
        target.follow_sequences(1_000_000)
        taken = set()
        for flag in (b"start", b"end"):
            body = b'{"parameters":{"sequence_id":7,"sequence_%b":true},"inputs":[]}' % flag
            trace = new_trace(TIMESTAMPS)
            sink, _ = send(lanes, body, trace)
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [body]
            assert trace.at_ns("REQUEST_END") is not None
            taken.add(trace.attributes["replica"])
        assert len(taken) == 1
