"""Responses that are made in the arena they leave by: not copied, and not written over while anyone looks at them."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from deployments.lane.arena import ARENA_BYTES, Arena, ArenaError
from deployments.lane.places import ALIGNMENT
from protocol.infer import InferRequest, InferResponse
from tests.deployments.lane.harness import EchoCodec, EchoModel, Lanes, on_loop

LARGE = bytes(range(256)) * 1000
HEAD = b"what comes first"


class MadeThere(EchoModel):
    """Answers with a head and its request's body, which it writes into a room; keeps what it has written."""

    def __init__(self, head: bytes = HEAD) -> None:
        super().__init__()
        self.codecs = (Parts(head),)
        self.kept: list[Any] = []

    def release(self) -> None:
        """Make the responses, and send them."""
        held, self.held = self.held, []
        for request in held:
            assert request.parameters is not None and request.room is not None
            body: Any = request.parameters["body"]
            room = request.room(len(body))
            if room is not None:
                room[:] = body
                request.parameters["body"] = room[:]  # type: ignore[assignment]
            self.kept.append(room)
            request.reply(request, InferResponse({}))


class Parts(EchoCodec):
    """Sends a head besides."""

    def __init__(self, head: bytes) -> None:
        self.head = head

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        """Return the head and the body."""
        assert request.parameters is not None
        return None, [self.head, request.parameters["body"]]


def use(lanes: Lanes, model: EchoModel) -> None:
    """Have the replica serve another model."""
    lanes.replicas[0].model = model
    lanes.replicas[0].server.models[0] = model


@on_loop
async def test_what_was_made_in_a_room_is_sent_from_there() -> None:
    async with Lanes() as lanes:
        _, connection = await lanes.open_arenas()
        model = MadeThere()
        use(lanes, model)
        sink, _ = lanes.send(LARGE, keep=True)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.responses == [HEAD + LARGE]
        assert connection._arena.taken_count == 1  # and not the room, and a copy of it
        model.kept.clear()
        await asyncio.sleep(0.05)
        assert connection._arena.taken_count == 1
        assert b"".join(sink.kept) == HEAD + LARGE
        sink.kept.clear()
        await lanes.until(lambda: connection._arena.taken_count == 0)


@on_loop
async def test_what_a_model_keeps_of_its_response_is_not_written_to_again() -> None:
    async with Lanes() as lanes:
        lane, connection = await lanes.open_arenas()
        model = MadeThere()
        use(lanes, model)
        assert (await lanes.ask(LARGE)).responses == [HEAD + LARGE]
        first = model.kept.pop()
        for number in range(5):
            other = bytes([number]) * len(LARGE)
            assert (await lanes.ask(other)).responses == [HEAD + other]
            model.kept.clear()
        assert first == LARGE
        await lanes.until(lambda: connection._arena.taken_count == 1 and lane._arena.taken_count == 0)
        # Models let go on any thread.
        holder = [first]
        del first
        await asyncio.to_thread(holder.clear)
        await lanes.until(lambda: connection._arena.taken_count == 0)


@on_loop
async def test_there_is_no_room_before_the_arena_is_open_nor_for_what_goes_by_socket() -> None:
    async with Lanes() as lanes:
        model = MadeThere()
        use(lanes, model)
        assert (await lanes.ask(LARGE)).responses == [HEAD + LARGE]
        assert model.kept == [None]
        (connection,) = lanes.replicas[0].server.connections
        await lanes.until(lambda: connection._arena_open)
        model.kept.clear()
        assert (await lanes.ask(b"small")).responses == [HEAD + b"small"]
        assert model.kept[-1] is None
        room = connection.room(ARENA_BYTES // 2)
        assert room is not None and connection.room(len(LARGE)) is None
        del room
        assert connection.room(len(LARGE)) is not None


@pytest.mark.parametrize("length", [1, ALIGNMENT, ALIGNMENT + 1, 100_000])
@on_loop
async def test_whatever_comes_first_the_response_is_whole(length: int) -> None:
    async with Lanes() as lanes:
        _, connection = await lanes.open_arenas()
        model = MadeThere(b"h" * length)
        use(lanes, model)
        for _ in range(3):
            assert (await lanes.ask(LARGE)).responses == [b"h" * length + LARGE]
        model.kept.clear()
        await lanes.until(lambda: connection._arena.taken_count == 0)


@on_loop
async def test_rooms_of_cancelled_requests_are_free_again() -> None:
    async with Lanes() as lanes:
        _, connection = await lanes.open_arenas()
        target: Any = lanes.fleet.target("echo")
        model = MadeThere()
        use(lanes, model)
        model.hold = True
        _, token = lanes.send(LARGE)
        await lanes.until(lambda: bool(model.held))
        target.cancel(token)
        await lanes.until(lambda: bool(model.cancelled))
        model.release()
        assert connection._arena.taken_count == 1
        model.kept.clear()
        model.cancelled.clear()
        await lanes.until(lambda: connection._arena.taken_count == 0)


def test_a_peer_cannot_take_back_a_room_that_it_was_not_sent() -> None:
    arena = Arena(1 << 20)
    arena.unlink()
    room = arena.room(200_000)
    assert room is not None
    with pytest.raises(ArenaError):
        arena.release(0)
    offset: int | None = arena.put([HEAD, room], len(HEAD) + len(room))
    assert offset == ALIGNMENT - len(HEAD)
    arena.release(offset)
    with pytest.raises(ArenaError):
        arena.release(offset)
    assert arena.taken_count == 1
    del room
    assert arena.taken_count == 0


class Bodies(RuleBasedStateMachine):
    """Rooms and bodies come and go in any order, and nothing that is looked at changes."""

    rooms = Bundle("rooms")
    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(1 << 20)
        self.arena.unlink()
        self.number = 0
        self.looked_at: dict[int, tuple[memoryview, bytes]] = {}
        """By what the other side or the model has: the memory, and what must be in it."""

    def filler(self, size: int) -> bytes:
        """Return bytes that nothing else has."""
        self.number += 1
        return self.number.to_bytes(4, "little") * (size // 4)

    @rule(target=rooms, pages=st.integers(1, 40))
    def make(self, pages: int) -> int | None:
        """Make something in a room, if there is one."""
        content = self.filler(pages * 2048)
        room = self.arena.room(len(content))
        if room is None:
            return None
        room[:] = content
        self.looked_at[self.number] = room, content
        return self.number

    @rule(target=sent, room=rooms)
    def send(self, room: int | None) -> tuple[int, int] | None:
        """Send what was made; once more it is a copy."""
        if room not in self.looked_at:
            return None
        memory, content = self.looked_at[room]
        return self.put([HEAD, memory], HEAD + content)

    @rule(target=sent, pages=st.integers(1, 40))
    def send_other(self, pages: int) -> tuple[int, int] | None:
        """Send what was not made in a room."""
        content = self.filler(pages * 4096)
        return self.put([content], content)

    def put(self, parts: list[bytes | memoryview], content: bytes) -> tuple[int, int] | None:
        """Send a body, if it finds a place."""
        offset = self.arena.put(parts, len(content))
        if offset is None:
            return None
        self.number += 1
        self.looked_at[self.number] = self.arena._view[offset : offset + len(content)], content
        return offset, self.number

    @rule(room=consumes(rooms))
    def let_go(self, room: int | None) -> None:
        """Look at a room no longer."""
        if room is not None:
            del self.looked_at[room]

    @rule(body=consumes(sent))
    def release(self, body: tuple[int, int] | None) -> None:
        """Have the other side look at a body no longer."""
        if body is not None:
            offset, number = body
            del self.looked_at[number]
            self.arena.release(offset)

    @invariant()
    def nothing_changes(self) -> None:
        """What anyone looks at is as it was."""
        for memory, content in self.looked_at.values():
            assert memory == content
        if not self.looked_at:
            assert self.arena.taken_count == 0
            assert self.arena.room(1 << 19) is not None
            np.frombuffer(self.arena._view, np.uint8).fill(0)


TestBodies = Bodies.TestCase
