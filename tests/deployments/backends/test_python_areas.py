"""Shared memory between a replica and the process of a model: used again while large tensors come, and freed at its end."""

import asyncio
import errno
import gc
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.backends.python.process import area
from deployments.backends.python.process.channel import READ_BYTES, Channel, Writer
from protocol.errors import Unavailable
from protocol.infer import Array
from tests.deployments.replica.hosted_models import ADD_ONE, CONFIG, DECOUPLED, Models, on_a_loop

STREAM = """
import time

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(x_of(request).as_numpy()[0])):
                sender.send(answer(np.full(25_000, number, np.int32)))
                time.sleep(0.002)  # as one that computes something
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT = 700
"""Responses of 100 kB: 70 MB in all."""
ENOUGH_BYTES = 32 << 20


def process_of(host: Any, name: str) -> Any:
    (instance,) = host.core.resolve(name).pool.instances
    return instance._child


@on_a_loop
async def test_one_stream_of_large_responses_takes_no_more_memory_the_longer_it_is(tmp_path: Path) -> None:
    models = Models(tmp_path, True).add("stream", STREAM, DECOUPLED)
    async with models.hosted() as call:
        numbers = [numbers[0] for numbers in await call.responses("stream", COUNT)]
        assert numbers == list(range(COUNT))
        assert os.fstat(process_of(call.host, "stream")._work._peer._descriptor).st_size <= ENOUGH_BYTES


@on_a_loop
async def test_so_does_one_that_another_model_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(tmp_path, True).add("stream", STREAM, DECOUPLED)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                responses = request_to("stream", x_of(requests[0])).exec(decoupled=True)
                errors = [response.error().message() for response in responses if response.has_error()]
                return [answer(np.frombuffer("; ".join(errors).encode(), np.uint8).astype(np.int32))]
        """,
        CONFIG,
    )
    monkeypatch.setattr(area, "MAX_BYTES", ENOUGH_BYTES)
    async with asyncio.timeout(60), models.hosted() as call:
        assert bytes(await call("caller", COUNT)) == b""


BLS = """
class TritonPythonModel:
    def execute(self, requests):
        return [outcome(request_to("adds", x_of(r)).exec()) for r in requests]
"""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Have nothing be freed that is part of a cycle, or that one keeps."""
    gc.disable()
    yield
    gc.enable()


def areas_held() -> set[int]:
    """Return which areas this process has open or mapped: a mapping has a descriptor too."""
    held = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:eagleray-" in os.readlink(link):
                held.add(link.stat().st_ino)
        except OSError:  # it was that of the folder, or is closed by now
            pass
    return held


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ["dies", "is loaded anew", "is unloaded"])
@on_a_loop
async def test_the_memory_of_a_process_goes_with_it(tmp_path: Path, end: str) -> None:
    before = areas_held()
    models = Models(tmp_path, True).add("bls", BLS).add("adds", ADD_ONE)
    async with asyncio.timeout(60), models.hosted() as call:
        await call("bls", *range(50_000))
        areas = areas_held() - before
        assert len(areas) == 8
        if end == "dies":
            for name in ("bls", "adds"):
                process_of(call.host, name).kill("was killed")
        elif end == "is loaded anew":
            for name in ("bls", "adds"):
                with (models.root / name / "config.pbtxt").open("a") as config:
                    config.write('parameters { key: "a" value { string_value: "b" } }')
            await call.host.apply(models.planned())
        else:
            await call.host.apply([])
        while areas & areas_held():
            await asyncio.sleep(0.01)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Two ends of a connection."""
    sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files = [os.memfd_create("area") for _ in sockets]
    one, other = (
        Channel(each, area.OwnArea(os.dup(files[place])), area.PeerArea(os.dup(files[1 - place])))
        for place, each in enumerate(sockets)
    )
    yield one, other
    for each in (one, other):
        if each.connection.fileno() >= 0:
            each.close()
    for file in files:
        os.close(file)


LARGE = np.arange(100_000, dtype=np.int32)


def send(channel: Channel, what: object) -> None:
    writer = Writer()
    channel.send("message", writer, what, writer.describe({"X": LARGE}))


def receive(channel: Channel) -> Array:
    _, place, (_, tensors) = channel.read(channel.connection.recv(READ_BYTES))
    return channel.arrays(tensors, place)["X"]


def test_an_array_outlives_the_process_that_has_written_it(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    send(one, "text")
    array = receive(other)
    for each in ends:
        each.close()
    np.testing.assert_array_equal(array, LARGE)


def memory_bytes(own: area.OwnArea) -> int:
    return os.fstat(own._descriptor).st_blocks * 512


def until_emptied(own: area.OwnArea) -> None:
    assert own._emptying is not None
    own._emptying[0].join(10)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[area.OwnArea]:
    """The writer's side of an area that keeps 1 MiB."""
    monkeypatch.setattr(area, "SPARE_BYTES", 1 << 20)
    own = area.OwnArea(os.memfd_create("area"))
    yield own
    own.close()


@pytest.mark.parametrize("count", [1, 8], ids=["one large tensor", "many"])
def test_an_area_gives_back_the_memory_of_large_tensors(own: area.OwnArea, count: int) -> None:
    places = [own.write_bytes(bytes((8 << 20) // count)) for _ in range(count)]
    own.release(places)
    until_emptied(own)
    assert memory_bytes(own) <= 1 << 20
    assert own.take(8 << 20) == 0


def test_what_lies_behind_the_last_place_goes_and_nothing_else(own: area.OwnArea) -> None:
    first, second, third = (own.write_bytes(bytes([number]) * (4 << 20)) for number in (1, 2, 3))
    own.release((first, third))
    until_emptied(own)
    assert own._memory is not None
    assert own._memory[second : second + (4 << 20)] == b"\x02" * (4 << 20)
    assert memory_bytes(own) == 8 << 20
    own.release((second,))
    assert own.take(1 << 10) == first
    own.release((first,))
    until_emptied(own)
    assert memory_bytes(own) <= 1 << 20


def test_a_tensor_that_finds_no_room_else_waits_for_memory_that_is_given_back(
    own: area.OwnArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    punch, may_go_on = area._punch, threading.Event()
    monkeypatch.setattr(area, "MAX_BYTES", 16 << 20)
    monkeypatch.setattr(area, "_punch", lambda *part: may_go_on.wait(10) and punch(*part))
    own.release((own.write_bytes(bytes(9 << 20)),))
    threading.Timer(0.01, may_go_on.set).start()
    place = own.write_bytes(b"\x01" * (9 << 20))
    assert own._memory is not None
    assert own._memory[place : place + (9 << 20)] == b"\x01" * (9 << 20)


def test_there_is_no_place_in_an_area_that_is_closed(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    send(one, "text")
    one.close()
    with pytest.raises(area.AreaFullError):
        one.packed("message", (writer := Writer()), writer.describe({"X": LARGE}))


def test_a_message_that_cannot_be_sent_leaves_the_areas_as_they_were(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    send(one, "text")
    receive(other)
    with pytest.raises(ValueError, match="unmarshallable"):
        send(other, object())
    send(other, "text")
    receive(one)
    send(one, "text")
    receive(other)
    assert [each._own._places.taken_count for each in ends] == [1, 0]


@on_a_loop
async def test_a_batch_that_the_machine_has_no_memory_for_is_told_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    large = [0] * 100_000
    async with Models(tmp_path, own_processes=True).add("add_one", ADD_ONE).hosted() as call:
        with monkeypatch.context() as patched:
            patched.setattr(area, "mmap", refuse)
            with pytest.raises(Unavailable, match="the server has no memory left"):
                await call("add_one", *large)
        assert await call("add_one", *large) == [1] * len(large)
