"""What is noted of requests between the ingress and the model's own target."""

from typing import Any

import pytest

from app.trace.sampler import Sampler, Sampling
from app.trace.traced_target import MAX_SENDS, TracedTarget
from deployments.lane.wire import GRPC, GRPC_STREAM
from protocol.errors import Unavailable
from protocol.trace import TIMESTAMPS, Trace


class Sink:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_response(self, json_length: int | None, parts: Any, final: bool) -> None:
        self.heard.append(parts)

    def on_error(self, error: Exception) -> None:
        self.heard.append(error)


class Target:
    """Holds what it is sent."""

    model_name = "m"
    version = 1
    shared = False
    ready = True

    def __init__(self) -> None:
        self.sinks: list[Any] = []
        self.traces: list[Trace | None] = []
        self.cancelled: list[Any] = []

    def submit(self, parts: Any, json_length: Any, sink: Any, wire: int = 0, trace: Trace | None = None) -> int:
        self.sinks.append(sink)
        self.traces.append(trace)
        return len(self.sinks)

    def cancel(self, token: Any) -> None:
        self.cancelled.append(token)


class Bench:
    def __init__(self, rate: int = 1) -> None:
        self.own, self.sink = Target(), Sink()
        self.ended: list[Trace] = []
        sampler = Sampler(Sampling(TIMESTAMPS, rate))
        self.target = TracedTarget(self.own, sampler, lambda trace, _: self.ended.append(trace))

    def names(self) -> list[str]:
        (trace,) = self.ended
        return [name for name, _ in trace.timestamps]


def test_a_long_stream_leaves_room_for_what_replicas_know() -> None:
    bench = Bench()
    bench.target.submit((b"x",), None, bench.sink, GRPC_STREAM)
    for number in range(10_000):
        bench.own.sinks[0].on_response(None, (number,), number == 9_999)
    assert len(bench.sink.heard) == 10_000
    assert bench.names().count("GRPC_SEND_START") == bench.names().count("GRPC_SEND_END") == MAX_SENDS + 1
    assert bench.names()[-3:] == ["INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]
    assert bench.ended[0].room.records > 3000


def test_an_error_ends_the_trace_and_reaches_the_client() -> None:
    bench = Bench()
    bench.target.submit((b"x",), None, bench.sink, GRPC)
    error = Unavailable("gone")
    bench.own.sinks[0].on_error(error)
    assert bench.sink.heard == [error]
    assert bench.ended[0].attributes["error"] == "gone"
    assert "GRPC_SEND_END" in bench.names()


@pytest.mark.parametrize("rate", [1, 2], ids=["traced", "not-its-turn"])
def test_a_request_is_given_up_where_it_is(rate: int) -> None:
    bench = Bench(rate)
    token = bench.target.submit((b"x",), None, bench.sink)
    bench.target.cancel(token)
    assert bench.own.cancelled == [1]
    assert len(bench.ended) == (rate == 1)
    bench.own.sinks[0].on_error(Unavailable("late"))
    assert len(bench.ended) == (rate == 1), "it ends once"


def test_others_go_on_as_they_came() -> None:
    bench = Bench(3)
    for _ in range(3):
        bench.target.submit((b"x",), None, bench.sink)
    assert [sink is bench.sink for sink in bench.own.sinks] == [True, True, False]
    assert [trace is None for trace in bench.own.traces] == [True, True, False]
