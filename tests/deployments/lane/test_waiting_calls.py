import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.routes import Routes
from deployments.lane.target import LaneTarget, TargetContext
from deployments.lane.waiting_calls import MAX_BYTES, MAX_CALLS
from protocol.errors import ServingError

KEY = ("m", 1)


class Sink:
    def __init__(self) -> None:
        self.errors: list[ServingError] = []

    def on_response(self, json_length: int | None, parts: Sequence[Any], final: bool) -> None:
        raise AssertionError("nobody answers here")

    def on_error(self, error: ServingError) -> None:
        self.errors.append(error)


def sleeping(wake: Callable[[], None] = lambda: None) -> tuple[Routes, LaneTarget]:
    routes = Routes(TargetContext(10, Refusals(Totals())), lambda: None)
    routes.set_sleepers({KEY: 60.0}, wake)
    target = routes.find(*KEY)
    assert target is not None and target.ready
    return routes, target


def test_a_request_that_waits_wakes_and_counts_as_under_way() -> None:
    async def run() -> None:
        woken: list[None] = []
        _, target = sleeping(lambda: woken.append(None))
        sink = Sink()
        target.submit([b"{}"], None, sink)
        assert (len(woken), target.ongoing, target.sent, sink.errors) == (1, 1, 1, [])

    asyncio.run(run())


def test_a_request_that_is_given_up_waits_no_longer() -> None:
    async def run() -> None:
        _, target = sleeping()
        sink = Sink()
        target.cancel(target.submit([b"{}"], None, sink))
        assert (target.ongoing, sink.errors) == (0, [])

    asyncio.run(run())


def test_what_waits_is_refused_when_the_model_is_gone() -> None:
    async def run() -> None:
        routes, target = sleeping()
        sink = Sink()
        target.submit([b"{}"], None, sink)
        routes.set_sleepers({}, lambda: None)
        assert not sink.errors, "it may be a model that shall always have a replica"
        routes.expect(set())
        (error,) = sink.errors
        assert error.http_status == 503
        assert routes.find(*KEY) is None

    asyncio.run(run())


def test_waiting_is_bounded_in_number_bytes_and_time() -> None:
    async def run() -> None:
        _, target = sleeping()
        sinks = [Sink() for _ in range(MAX_CALLS + 1)]
        for sink in sinks:
            target.submit([b"{}"], None, sink)
        assert [bool(sink.errors) for sink in sinks] == [False] * MAX_CALLS + [True]
        assert str(sinks[-1].errors[0]) == "Exceeds maximum queue size"
        _, target = sleeping()
        large, small = Sink(), Sink()
        token = target.submit([bytes(MAX_BYTES)], None, large)
        target.submit([b"{}"], None, small)
        assert (len(large.errors), len(small.errors)) == (0, 1)
        target.cancel(token)
        target.submit([bytes(MAX_BYTES)], None, small)
        assert len(small.errors) == 1, "there is room again"
        woken: list[None] = []
        _, target = sleeping(lambda: woken.append(None))
        alone, other = Sink(), Sink()
        target.submit([bytes(MAX_BYTES + 1)], None, alone)
        target.submit([b"{}"], None, other)
        assert (len(woken), len(alone.errors), len(other.errors)) == (1, 0, 1)
        late = Sink()
        routes, target = sleeping()
        routes.set_sleepers({KEY: 0.02}, lambda: None)
        target.submit([b"{}"], None, late)
        async with asyncio.timeout(10):
            while target.ongoing:
                await asyncio.sleep(0)
        assert [str(error) for error in late.errors] == ["no replica of model 'm' has started in time"]

    asyncio.run(run())
