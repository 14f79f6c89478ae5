"""Deadlines that pass, and clients that say so at the same time."""

import asyncio
import gc

import pytest
import uvloop

from app.grpc.options import GrpcOptions
from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.grpc.server import request
from tests.app.grpc.test_wire import Wire, prefixed
from tests.app.http2.wire import data, goaway_code

INDEX = "/inference.GRPCInferenceService/RepositoryIndex"
HELD = prefixed(request(request_id="hold").SerializeToString())


@pytest.mark.parametrize(
    ("timeout", "code"),
    [("100S", frames.ENHANCE_YOUR_CALM), ("1n", None), ("400u", None)],
    ids=["begun", "due", "due within a tick of the clock"],
)
def test_calls_that_are_given_up_at_their_deadlines_do_not_end_the_connection(timeout: str, code: int | None) -> None:
    """A model that has become slow would otherwise take what other models answer on the same connection with it."""

    async def run() -> None:
        wire = Wire(GrpcOptions(http2=Http2Limits(max_resets_burst=10, max_resets_per_s=1)))
        sent = [
            wire.headers(stream_id, grpc_timeout=timeout)
            + data(stream_id, HELD, end=True)
            + frames.rst_stream(stream_id, frames.CANCEL)
            for stream_id in range(1, 41, 2)
        ]
        assert goaway_code(await wire.send(*sent)) == code
        if code is None:
            assert not wire.connection.streams and len(wire.service.cancelled) == len(sent)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_a_call_that_is_given_up_before_its_handler_has_begun_leaves_nothing(recwarn: pytest.WarningsRecorder) -> None:
    async def run() -> None:
        wire = Wire()
        await wire.send(wire.headers(1, INDEX) + data(1, prefixed(b""), end=True) + frames.rst_stream(1, frames.CANCEL))
        assert not wire.connection.streams

    asyncio.run(run())
    gc.collect()
    # What other tests have left may be collected here too.
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]
