"""Large bodies on lanes of one node: in shared memory, until nobody looks at them any more."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.lane.arena import ARENA_BYTES, Arena, ArenaError, open_arena
from protocol.errors import InvalidArgument
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
