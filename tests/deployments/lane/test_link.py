"""How a lane is opened, and what is said when it cannot be."""

import asyncio
import logging
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from deployments.lane.frames import HEADER, HEADER_SIZE, PROTOCOL_VERSION, Kind
from deployments.lane.link import WARN_AFTER_S
from deployments.lane.server import MAX_STRANGERS
from protocol.errors import Unavailable
from protocol.trace import TIMESTAMPS, new_trace
from tests.deployments.lane.harness import Lanes

SECRET = b"secret"


def hello(version: int = PROTOCOL_VERSION, secret: bytes = SECRET) -> bytes:
    return HEADER.pack(HEADER_SIZE + len(secret), 0, Kind.HELLO, 0, version, 0) + secret


async def stranger(lanes: Lanes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(lanes.replicas[0].address.unix_path)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Return what comes before the end of the connection."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.REQUEST, Kind.ARENA])
def test_a_stranger_costs_no_memory_for_what_it_announces(kind: Kind) -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            tracemalloc.start()
            try:
                reader, writer = await stranger(lanes)
                writer.write(HEADER.pack(1 << 30, 0, kind, 0, 0, 0))
                assert await closed(reader) == b""
                writer.close()
                assert tracemalloc.get_traced_memory()[1] < 10 << 20
            finally:
                tracemalloc.stop()
            assert (await lanes.ask()).error is None

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", hello()[:10]], ids=["silent", "slow"])
def test_a_stranger_has_little_time_to_say_the_secret(sent: bytes) -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            reader, writer = await stranger(lanes)
            writer.write(sent)
            assert await closed(reader) == b""
            writer.close()

    asyncio.run(run())


def test_strangers_are_few_and_keep_no_replica_from_its_ingress() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            replica = lanes.replicas[0]
            replica.server.hello_timeout_s = 60.0
            strangers = [await stranger(lanes) for _ in range(MAX_STRANGERS + 10)]
            for reader, _ in strangers[:10]:
                await closed(reader)
            assert len(replica.server._strangers) == MAX_STRANGERS
            reader, writer = await stranger(lanes)
            writer.write(hello())
            async with asyncio.timeout(5):
                assert b"echo" in await reader.readuntil(b"]]")
            for _, each in (*strangers, (reader, writer)):
                each.close()

    asyncio.run(run())


def test_guessing_the_secret_on_one_connection_is_cut_off_at_the_first_wrong_one() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            reader, writer = await stranger(lanes)
            writer.write(hello(secret=b"guess!") + hello())
            assert await closed(reader) == b""
            writer.close()

    asyncio.run(run())


def test_another_version_of_the_protocol_is_refused_in_words() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            reader, writer = await stranger(lanes)
            writer.write(hello(version=99))
            answer = await closed(reader)
            expected = f"the replica speaks version {PROTOCOL_VERSION} of the lane protocol, not 99"
            assert answer[HEADER_SIZE:].decode() == expected
            writer.close()

    asyncio.run(run())


def unix_gone(lanes: Lanes) -> Any:
    return replace(lanes.replicas[0].address, unix_path="/nowhere/at/all")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "deployments.lane.link"]


def test_a_lane_that_cannot_be_opened_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            began_s = asyncio.get_running_loop().time()
            with caplog.at_level(logging.WARNING):
                lanes.fleet.set_replicas("echo#v2", {"gone": replace(unix_gone(lanes), replica_id="gone")})
                await lanes.until(lambda: bool(warnings(caplog)), timeout_s=WARN_AFTER_S + 5)
            assert asyncio.get_running_loop().time() - began_s >= 3.0
        assert warnings(caplog) == ["replica gone: no lane can be opened: [Errno 2] No such file or directory"]

    asyncio.run(run())


def test_a_refused_lane_is_logged_with_the_replicas_words_once(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        words = b"the replica speaks version 1 of the lane protocol, not 2"
        writer.write(HEADER.pack(HEADER_SIZE + len(words), 0, Kind.ERROR, 1, 14, 0) + words)
        await writer.drain()
        writer.close()

    async def run() -> None:
        async with Lanes() as lanes:
            path = lanes.replicas[0].address.unix_path + "-old"
            old = await asyncio.start_unix_server(refuse, path)
            with caplog.at_level(logging.WARNING):
                lanes.fleet.set_replicas("echo#v2", {"old": replace(unix_gone(lanes), unix_path=path)})
                await lanes.until(lambda: bool(warnings(caplog)), timeout_s=WARN_AFTER_S + 5)
                before = attempts
                await lanes.until(lambda: attempts >= before + 2)
            (message,) = warnings(caplog)
            assert message.endswith("no lane can be opened: the replica speaks version 1 of the lane protocol, not 2")
            old.close()
            assert (await lanes.ask()).error is None

    asyncio.run(run())


def on_tcp(test: Callable[[Lanes], Awaitable[None]]) -> None:
    """Run a test whose first replica listens on TCP too."""

    async def run() -> None:
        async with Lanes() as lanes:
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            replica = lanes.replicas[0]
            await replica.server.listen([listener])
            host, port = listener.getsockname()
            replica.address = replace(replica.address, tcp_host=host, tcp_port=port)
            await test(lanes)

    asyncio.run(run())


def test_tcp_is_taken_where_the_unix_socket_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    async def test(lanes: Lanes) -> None:
        with caplog.at_level(logging.WARNING):
            lanes.fleet.set_replicas("echo#v1", {"elsewhere": replace(unix_gone(lanes), replica_id="elsewhere")})
            await lanes.until(lambda: lanes.lanes_open == 1)
        body = bytes(300_000)
        assert (await lanes.ask(body)).responses == [body]
        assert "replica elsewhere: its Unix socket cannot be opened, so its lane goes by TCP" in caplog.text

    on_tcp(test)


def test_a_replica_that_ended_itself_is_logged_with_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    async def test(lanes: Lanes) -> None:
        with caplog.at_level(logging.ERROR):
            lanes.replicas[0].die("Segmentation fault\n\n  in execute\n")
            await lanes.until(lambda: lanes.lanes_open == 0)
        assert warnings(caplog) == ["replica r0 of echo#v1 has ended itself: Segmentation fault\n\n  in execute"]

    on_tcp(test)


def test_a_replica_that_somebody_has_killed_is_not_said_to_have_ended_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(lanes: Lanes) -> None:
        lanes.replicas[0].die()
        await lanes.until(lambda: lanes.lanes_open == 0)
        assert warnings(caplog) == []

    on_tcp(test)


def test_a_replica_that_ended_itself_is_logged_with_the_models_that_it_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with Lanes(1) as lanes:
            lanes.replicas[0].model.hold = True
            trace = new_trace(TIMESTAMPS)
            asked = [lanes.send(b"a"), lanes.send(b"b")]
            asked[1][1].trace = trace
            await lanes.until(lambda: len(lanes.replicas[0].model.held) == 2)
            with caplog.at_level(logging.ERROR):
                lanes.replicas[0].die("Segmentation fault")
                await lanes.until(lambda: lanes.lanes_open == 0)
            said = "replica r0 of echo#v1 has ended itself while requests for 'echo' were under way: Segmentation fault"
            assert warnings(caplog) == [said], asked
            assert vars(caplog.records[-1])["trace_id"] == f"{trace.trace_id:032x}"

    asyncio.run(test())


def test_the_mark_of_a_replica_on_another_node_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def test(lanes: Lanes) -> None:
        replica = lanes.replicas[0]
        far = replace(replica.address, replica_id="far", node_id="node-2")
        lanes.fleet.set_replicas("echo#v1", {"far": far})
        await lanes.until(lambda: [lane.near for lane in _lanes_of(lanes)] == [False])
        replica.model.hold = True
        sink, _ = lanes.send()
        await lanes.until(lambda: bool(replica.model.held))
        with caplog.at_level(logging.ERROR):
            replica.die("left by a namesake")
            await lanes.until(lambda: not lanes.lanes_open)
            lanes.fleet.expect(())
            await asyncio.wait_for(sink.done.wait(), 5)
        assert type(sink.error) is Unavailable
        assert warnings(caplog) == []

    on_tcp(test)


def _lanes_of(lanes: Lanes) -> list[Any]:
    target: Any = lanes.fleet.target("echo")
    return list(target.choice.lanes) if target else []
