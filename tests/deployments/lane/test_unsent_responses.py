"""Streams of which a response cannot be encoded."""

import asyncio
from typing import Any

import pytest

from deployments.core.counts import CLIENT, Label
from deployments.lane.wire import HTTP
from deployments.replica.served_model import LocalTarget
from protocol.errors import InvalidArgument
from protocol.infer import InferRequest, InferResponse
from tests.deployments.lane.harness import EchoCodec, Lanes, Sink


class FailsLater(EchoCodec):
    """Cannot encode the second response of a request."""

    def __init__(self) -> None:
        self.count = 0

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        self.count += 1
        if self.count == 2:
            raise InvalidArgument("no such class")
        return super().encode(request, response)


@pytest.mark.parametrize("near", [False, True], ids=["lane", "own process"])
def test_a_stream_of_which_a_response_cannot_be_encoded_ends_with_the_error(near: bool) -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            model = lanes.replicas[0].model
            model.codecs = (FailsLater(),)
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
            assert (len(sink.responses), str(sink.error)) == (1, "no such class")
            assert model.cancelled == [request]
            lanes.meters.sample()
            under_way, _, failed, *_ = lanes.counted.row(Label(CLIENT, "echo", 1, HTTP)).values()
            assert (under_way, failed) == (0, 1)

    asyncio.run(run())
