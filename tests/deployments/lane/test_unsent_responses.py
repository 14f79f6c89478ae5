"""Responses that cannot be encoded, or are too large."""

import asyncio
import gc
import mmap
import weakref
from typing import Any

import pytest

from deployments.core.counts import CLIENT, Label
from deployments.lane.frames import HEADER_SIZE, MAX_FRAME_BYTES
from deployments.lane.slow_codec import SlowCodec
from deployments.lane.wire import HTTP
from deployments.replica.served_model import LocalTarget
from protocol.errors import Internal, InvalidArgument
from protocol.infer import InferRequest, InferResponse
from tests.deployments.fakes import slow_queue
from tests.deployments.lane.harness import EchoCodec, Lanes, Sink


class FailsLater(EchoCodec):
    """Cannot encode the second response of a request."""

    def __init__(self, error: Exception) -> None:
        self.count = 0
        self.error = error

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        self.count += 1
        if self.count == 2:
            raise self.error
        return super().encode(request, response)


@pytest.mark.parametrize("near", [False, True], ids=["lane", "own process"])
@pytest.mark.parametrize(
    ("error", "told"),
    [(InvalidArgument("no such class"), "no such class"), (ValueError("x"), "the response could not be encoded")],
    ids=["refused", "broken"],
)
def test_a_stream_of_which_a_response_cannot_be_encoded_ends_with_the_error(
    error: Exception, told: str, near: bool
) -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            model = lanes.replicas[0].model
            model.codecs = (FailsLater(error),)
            model.hold = True
            if near:
                sink = Sink()
                model.model_name, model.version = "echo", 1  # type: ignore[attr-defined]
                LocalTarget(model, lanes.meters.of("echo", 1)).submit((b"hello",), None, sink)  # type: ignore[arg-type]
            else:
                sink, _ = lanes.send()
            await lanes.until(lambda: bool(model.held))
            (request,) = model.held
            model.stream(4)
            await asyncio.wait_for(sink.done.wait(), 5)
            await asyncio.sleep(0.01)
            assert (len(sink.responses), str(sink.error)) == (1, told)
            assert model.cancelled == [request]
            lanes.meters.sample()
            under_way, _, failed, *_ = lanes.counted.row(Label(CLIENT, "echo", 1, HTTP)).values()
            assert (under_way, failed) == (0, 1)

    asyncio.run(run())


class TooLarge(EchoCodec):
    """Encodes responses that no frame can hold, in memory that nobody touches."""

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        return None, [b"{}", memoryview(mmap.mmap(-1, MAX_FRAME_BYTES - HEADER_SIZE - 1))]


class TakesLong(TooLarge):
    """Does so in a thread."""

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        return True


@pytest.mark.parametrize(
    ("codec", "count"), [(TooLarge, 1), (TooLarge, 2), (TakesLong, 1)], ids=["", "stream", "encoded-in-a-thread"]
)
def test_a_response_that_is_too_large_for_a_frame_fails_its_request_alone(codec: type[EchoCodec], count: int) -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            model = lanes.replicas[0].model
            model.hold = True
            other, _ = lanes.send(b"other")
            await lanes.until(lambda: len(model.held) == 1)
            (held,), model.held = model.held, []
            model.codecs = (codec(),)
            model.slow = SlowCodec(model.codecs, slow_queue())
            sink, _ = lanes.send()
            await lanes.until(lambda: bool(model.held))
            model.stream(count)
            await asyncio.wait_for(sink.done.wait(), 5)
            assert type(sink.error) is Internal and not sink.responses
            size = MAX_FRAME_BYTES - HEADER_SIZE + 1
            assert sink.error.message == f"a response of {size} bytes is more than a replica can send"
            assert len(model.cancelled) == count - 1
            model.codecs = (EchoCodec(),)
            model.held = [held]
            model.stream(1)
            await asyncio.wait_for(other.done.wait(), 5)
            assert (other.error, other.responses) == (None, [b"other"])
            assert lanes.replicas[0].server.inflight_count == 0

    asyncio.run(run())


class Refuses(EchoCodec):
    """Can encode no response."""

    def __init__(self) -> None:
        self.errors: list[weakref.ref[InvalidArgument]] = []

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        error = InvalidArgument("no such class")
        self.errors.append(weakref.ref(error))
        raise error


def test_what_a_response_was_that_cannot_be_encoded_is_free_at_once() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            codec = Refuses()
            lanes.replicas[0].model.codecs = (codec,)
            gc.collect()
            gc.disable()
            try:
                assert str((await lanes.ask()).error) == "no such class"
                assert [error() for error in codec.errors] == [None], "its frames have the request and the response"
            finally:
                gc.enable()

    asyncio.run(run())
