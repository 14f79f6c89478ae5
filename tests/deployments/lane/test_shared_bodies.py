"""Large bodies on lanes of one node: in shared memory, until nobody looks at them any more."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.lane import frames
from deployments.lane.arena import ARENA_BYTES, Arena, ArenaError, open_arena
from protocol.errors import InvalidArgument, Unavailable
from tests.deployments.lane.harness import Lanes, on_loop

LARGE = bytes(range(256)) * 1000


@on_loop
async def test_large_bodies_go_through_shared_memory_and_leave_it_again() -> None:
    async with Lanes() as lanes:
        lane, connection = await lanes.open_arenas()
        lanes.replicas[0].model.hold = True
        sinks = [lanes.send(bytes([number]) + LARGE)[0] for number in range(10)]
        await lanes.until(lambda: len(lanes.replicas[0].model.held) == 10)
        assert lane._arena.taken_count == 10
        assert not Path(lane._arena.path).exists()
        lanes.replicas[0].model.release()
        for number, sink in enumerate(sinks):
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [bytes([number]) + LARGE]
        await lanes.until(lambda: lane._arena.taken_count == connection._arena.taken_count == 0)


@on_loop
async def test_what_does_not_fit_the_arena_goes_by_socket() -> None:
    async with Lanes() as lanes:
        await lanes.ask(LARGE)
        huge = bytes(ARENA_BYTES + 1)
        assert (await lanes.ask(huge)).responses == [huge]
        assert (await lanes.ask(LARGE)).responses == [LARGE]


@on_loop
async def test_shared_bodies_of_cancelled_refused_and_failed_requests_are_taken_back() -> None:
    async with Lanes() as lanes:
        lane, _ = await lanes.open_arenas()
        target: Any = lanes.fleet.target("echo")
        model = lanes.replicas[0].model
        assert type((await lanes.ask(b"bad" + LARGE)).error) is InvalidArgument
        model.hold = True
        sink, token = lanes.send(LARGE)
        await lanes.until(lambda: bool(model.held))
        target.cancel(token)
        await lanes.until(lambda: bool(model.cancelled))
        assert lane._arena.taken_count == 1  # the model may still look at it
        model.release()
        model.cancelled.clear()
        await lanes.until(lambda: lane._arena.taken_count == 0)
        assert not sink.done.is_set()


@on_loop
async def test_what_a_model_keeps_of_a_shared_body_is_not_written_to_again() -> None:
    async with Lanes() as lanes:
        lane, _ = await lanes.open_arenas()
        model = lanes.replicas[0].model
        model.hold = True
        sink, _ = lanes.send(LARGE)
        await lanes.until(lambda: bool(model.held))
        kept = np.frombuffer(model.held[0].parameters["body"], np.uint8)[100:200]  # type: ignore[index, arg-type]
        as_it_was = kept.copy()
        model.hold = False
        model.release()
        await asyncio.wait_for(sink.done.wait(), 5)
        for number in range(5):
            await lanes.ask(bytes([number]) * len(LARGE))
        assert kept.tolist() == as_it_was.tolist()
        assert lane._arena.taken_count == 1
        # Models let go on any thread.
        holder = [kept]
        del kept
        await asyncio.to_thread(holder.clear)
        await lanes.until(lambda: lane._arena.taken_count == 0)


@on_loop
async def test_clients_that_read_slowly_hold_half_of_the_arena_at_most() -> None:
    async with Lanes() as lanes:
        lane, connection = await lanes.open_arenas()
        body = bytes(range(256)) * (ARENA_BYTES // 1024)  # a quarter
        slow = [lanes.send(body, keep=True)[0] for _ in range(3)]
        for sink in slow:
            await asyncio.wait_for(sink.done.wait(), 5)
        await lanes.until(lambda: lane._arena.taken_count == 0 and connection._arena.taken_count == 2)
        for _ in range(5):
            assert (await lanes.ask(body)).responses == [body]
        assert all(b"".join(sink.kept) == body for sink in slow)
        for sink in slow:
            sink.kept.clear()
        await lanes.until(lambda: connection._arena.taken_count == 0)
        assert lane.lent_bytes == 0


@on_loop
async def test_a_replica_that_dies_with_shared_bodies_loses_no_request() -> None:
    async with Lanes(2) as lanes:
        for _ in range(4):
            await lanes.ask(LARGE)
        first, second = lanes.replicas
        first.model.hold = second.model.hold = True
        sinks = [lanes.send(LARGE)[0] for _ in range(6)]
        await lanes.until(lambda: len(first.model.held) == len(second.model.held) == 3)
        second.model.hold = False
        first.die()
        second.model.release()
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [LARGE]


def test_an_arena_gives_out_places_and_takes_them_back() -> None:
    arena = Arena(1 << 20)
    arena.unlink()
    places = [arena.put([b"x" * 300_000], 300_000) for _ in range(4)]
    assert places[3] is None
    assert len(set(places[:3])) == 3
    for place in (places[1], places[0], places[2]):
        assert place is not None
        arena.release(place)
    assert arena.put([bytes(1 << 20)], 1 << 20) == 0
    with pytest.raises(ArenaError):
        arena.release(4096)


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/shm/other", "", "\0"])
def test_only_files_in_the_folder_for_arenas_are_opened(path: str) -> None:
    with pytest.raises((ArenaError, ValueError)):
        open_arena(path)


def failing(call: Callable[..., Any], error: Exception, at: int) -> Callable[..., Any]:
    """Return a function that fails when it is called for the so-many-th time."""
    count = 0

    def call_or_fail(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise error
        return call(*args)

    return call_or_fail


async def under_way(lanes: Lanes) -> tuple[Any, Any]:
    """Return the sink of a request that the model has and holds, unlike those that come, and the lane it came by."""
    (replica,) = lanes.replicas
    (connection,) = replica.server.connections
    replica.model.hold = True
    held, _ = lanes.send(b"under way")
    await lanes.until(lambda: len(replica.model.held) == 1)
    replica.model.hold = False
    return held, connection


NO_ROOM = OSError(errno.ENOSPC, "No space left on device")
NO_FILES = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("call", "error", "at"),
    [
        pytest.param("posix_fallocate", NO_ROOM, 1, id="client's own"),
        pytest.param("posix_fallocate", NO_ROOM, 2, id="replica's own"),
        pytest.param("dup", NO_FILES, 2, id="client's at the replica"),
        pytest.param("dup", NO_FILES, 4, id="replica's at the client"),
    ],
)
@on_loop
async def test_a_lane_outlives_an_arena_that_cannot_be_had_and_gets_it_later(
    call: str, error: OSError, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, failing(getattr(os, call), error, at))
    monkeypatch.setattr(frames, "ARENA_RETRY_S", 0.0)
    async with Lanes() as lanes:
        held, before = await under_way(lanes)
        for number in range(3):
            assert (await lanes.ask(bytes([number]) + LARGE)).responses == [bytes([number]) + LARGE]
        assert held.responses == [b"under way"]
        _, connection = await lanes.open_arenas()
        assert connection is before


@pytest.mark.parametrize("at", [1, 2], ids=["request", "response"])
@on_loop
async def test_a_body_for_which_there_is_no_memory_fails_its_own_call(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "empty", failing(np.empty, MemoryError(), at))
    async with Lanes() as lanes:
        held, before = await under_way(lanes)
        lost = await lanes.ask(bytes(ARENA_BYTES + 1))
        assert type(lost.error) is Unavailable and lost.error.message == "the server has no memory left"
        assert (await lanes.ask(b"the next")).responses == [b"the next"]
        lanes.replicas[0].model.release()
        await lanes.until(lambda: held.responses == [b"under way"])
        huge = bytes(range(256)) * (ARENA_BYTES // 256 + 1)
        assert (await lanes.ask(huge)).responses == [huge]
        assert tuple(lanes.replicas[0].server.connections) == (before,)


@pytest.mark.parametrize("size", [200_003, 1 << 18])
@on_loop
async def test_a_body_ends_at_an_aligned_address(size: int) -> None:
    """So the tensor that it ends with is aligned, however long what comes before that is."""
    async with Lanes() as lanes:
        await lanes.open_arenas()
        model = lanes.replicas[0].model
        model.hold = True
        sink, _ = lanes.send(bytes(size))
        await lanes.until(lambda: bool(model.held))
        held = np.frombuffer(model.held[0].parameters["body"], np.uint8)  # type: ignore[index, arg-type]
        assert len(held) == size and (held.__array_interface__["data"][0] + size) % 16 == 0
        del held
        model.release()
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.responses == [bytes(size)]
