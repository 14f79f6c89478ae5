"""Good conversations with random damage: whatever arrives, nothing but an orderly answer or end comes of it."""

import asyncio
import random

import pytest

from app.grpc.options import GrpcOptions
from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.grpc.test_wire import BODY, INFER, LIVE, STREAM, Wire, prefixed
from tests.app.http2.wire import data

_COUNT = 300


def conversation(wire: Wire, chance: random.Random) -> bytes:
    """A good client's frames, in a random mix."""
    sent = []
    for stream_id in range(1, 2 * chance.randint(1, 6), 2):
        path = chance.choice((INFER, STREAM, LIVE, "/nope"))
        body = prefixed(b"") if path == LIVE else BODY * (chance.randint(0, 3) if path == STREAM else 1)
        extra = chance.choice(({}, {"grpc_timeout": "1H"}, {"x_own": str(chance.random())}, {"grpc_encoding": "gzip"}))
        cut = chance.randint(0, len(body))
        sent += [wire.headers(stream_id, path, **extra), data(stream_id, body[:cut]), data(stream_id, body[cut:], True)]
        sent.append(
            chance.choice(
                (
                    b"",
                    frames.settings({4: chance.randint(0, 1 << 20)}),
                    frames.window_update(0, chance.randint(1, 1 << 20)),
                    frames.rst_stream(stream_id, 8),
                    frames.frame(frames.PING, 0, 0, bytes(8)),
                )
            )
        )
    return b"".join(sent)


def damaged(sent: bytes, chance: random.Random) -> bytes:
    damage = bytearray(sent)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(damage))
        kind = chance.randrange(4)
        if kind == 0:
            damage[at] = chance.randrange(256)
        elif kind == 1:
            del damage[at : at + chance.randint(1, 20)]
        elif kind == 2:
            damage[at:at] = chance.randbytes(chance.randint(1, 20))
        else:
            damage[at] ^= 1 << chance.randrange(8)
        if not damage:
            break
    return bytes(damage)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage(seed: int) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        options = GrpcOptions(max_message_bytes=1 << 20, http2=Http2Limits(max_buffered_bytes=1 << 20))
        for _ in range(_COUNT):
            wire = Wire(options)
            sent = damaged(conversation(wire, chance), chance)
            pieces = chance.randint(1, 4)
            size = max(1, len(sent) // pieces)
            answer = await wire.send(*(sent[i : i + size] for i in range(0, len(sent), size)))
            assert sum(len(each.payload) for each in answer) < 20_000
            wire.connection.connection_lost(None)
            await wire.send()
            assert not wire.connection.streams
            assert not wire.connection.incomplete
        assert not failures

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(2))
def test_random_bytes_after_the_preface(seed: int) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        for _ in range(_COUNT):
            wire = Wire()
            await wire.send(chance.randbytes(chance.randint(1, 400)))
            wire.connection.connection_lost(None)
            assert not wire.connection.streams

    asyncio.run(run())
