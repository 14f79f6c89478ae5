"""What comes a few bytes at a time costs no more than what comes at once."""

import asyncio
import tracemalloc

import pytest

from app.http.limits import HttpLimits
from tests.app.http.wire import Wire, infer

_HEAD_BYTES = 60_000
_HEAD = b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"y" * _HEAD_BYTES


async def _copied_bytes(wire: Wire) -> int:
    """Return how much more memory the connection takes for a while when a long head goes on byte by byte."""
    tracemalloc.start()
    try:
        await wire.send(_HEAD, b"y")
        held_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(100):
            wire.connection.get_buffer(-1)[:1] = b"y"
            wire.connection.buffer_updated(1)
        return tracemalloc.get_traced_memory()[1] - held_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "behind a request that is under way"])
def test_a_byte_of_a_head_costs_no_copy_of_what_came_before(busy: bool) -> None:
    async def run() -> None:
        wire = Wire()
        wire.target.hold = True
        if busy:
            await wire.send(infer())
        assert await _copied_bytes(wire) < _HEAD_BYTES // 4
        wire.target.release()
        assert b"200 OK" in await wire.send(b"\r\n\r\n")

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_end_of_a_head_is_found_wherever_a_read_cuts_it(size: int) -> None:
    async def run() -> None:
        wire = Wire()
        long = b"X: " + b"y" * 1500 + b"\r\n"  # what was searched of such a head is not searched again
        sent = infer(b"one", extra=long) + infer(b"two")
        await wire.send(*(sent[at : at + size] for at in range(0, len(sent), size)))
        assert wire.target.bodies == [b"one", b"two"]

    asyncio.run(run())


@pytest.mark.parametrize("rest", [b"\n\n", b"\r\n\n"])
def test_a_head_with_a_bare_line_feed_is_refused_as_soon_as_that_has_come(rest: bytes) -> None:
    async def run() -> None:
        head = b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 1500
        answers = [await Wire().send(head + rest[:cut], rest[cut:]) for cut in range(len(rest))]
        assert all(answer.startswith(b"HTTP/1.1 400 ") for answer in answers)

    asyncio.run(run())


def test_a_head_that_goes_on_beyond_the_limit_is_refused() -> None:
    async def run() -> None:
        wire = Wire(HttpLimits(max_header_bytes=2000))
        assert await wire.send(_HEAD[:1999], b"y") == b""
        assert (await wire.send(b"y")).startswith(b"HTTP/1.1 431 ")

    asyncio.run(run())


def test_a_head_that_was_begun_while_the_client_read_nothing_is_taken_when_it_reads() -> None:
    async def run() -> None:
        wire = Wire()
        sent = infer(b"one", extra=b"X: " + b"y" * 1500 + b"\r\n")
        await wire.send(sent[:1200])
        wire.connection.pause_writing()
        await wire.send(sent[1200:1300], sent[1300:])
        assert wire.target.bodies == []
        wire.connection.resume_writing()
        await wire.send()
        assert wire.target.bodies == [b"one"]

    asyncio.run(run())
