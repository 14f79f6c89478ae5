"""The table of `rfc9113_cases`, over the gRPC port's own protocol. `h2spec`, which asks the same, is in no package."""

import asyncio

import pytest

from app.grpc.options import GrpcOptions
from app.http2 import frames
from tests.app.grpc.test_wire import Wire
from tests.app.http2.rfc9113_cases import CASES, Rfc9113Case, call
from tests.app.http2.wire import Frame, Transport, goaway_code, reset_codes

_PING = frames.frame(frames.PING, 0, 0, b"are you?")
_LATER = 1001


def _is_answered(wire: Wire, got: list[Frame], stream_id: int) -> bool:
    return "grpc-status" in wire.status(got, stream_id)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.section} {case.name}" for case in CASES])
def test_case(case: Rfc9113Case) -> None:
    async def run() -> None:
        wire = Wire(GrpcOptions())
        if not case.greet:
            wire.transport = Transport()
            wire.connection = type(wire.connection)(wire.front)
            wire.connection.connection_made(wire.transport)
        got = await wire.send(case.sent)
        kind, _, what = case.expected.partition(" ")
        if kind == "goaway":
            assert goaway_code(got) == int(what)
            assert wire.transport.closed
            return
        assert goaway_code(got) is None
        if kind == "reset":
            stream_id, code = map(int, what.split())
            assert reset_codes(got)[stream_id] == code
        elif kind == "status":
            assert _is_answered(wire, got, int(what))
        elif kind == "ack":
            acks = [frame for frame in got if frame.kind in (frames.SETTINGS, frames.PING) and frame.flags & frames.ACK]
            assert acks
        got = await wire.send(_PING, call(_LATER))
        assert any(frame.kind == frames.PING and frame.payload == b"are you?" for frame in got)
        assert _is_answered(wire, got, _LATER)

    asyncio.run(run())
