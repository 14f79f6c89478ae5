"""Answers that a client has not taken yet when its connection is told to go, on real sockets."""

import asyncio
import socket
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.grpc.options import GrpcOptions
from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.grpc.server import Server, request, serving
from tests.hostile.grpc_cases import STREAM
from tests.hostile.grpc_wire import block, data, headers, prefixed
from tests.serving import wait_until

PING = frames.frame(frames.PING, 0, 0, bytes(8))
SETTINGS = {frames.SETTINGS_INITIAL_WINDOW_SIZE: frames.MAX_WINDOW_BYTES}
WINDOW = frames.window_update(0, frames.MAX_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES)
LIVE = b"/inference.GRPCInferenceService/ServerLive"
COUNT = 20
SIZE = 100_000


@pytest.fixture
def client() -> Iterator[socket.socket]:
    """A client that takes little before it reads."""
    with socket.socket() as opened:
        opened.settimeout(10.0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        yield opened


def ask(server: Server, client: socket.socket, request_id: str) -> None:
    client.connect(("127.0.0.1", server.port))
    asked = request("decoupled", [0.0] * (SIZE // 4), request_id).SerializeToString()
    client.sendall(frames.PREFACE + frames.settings(SETTINGS) + WINDOW + headers(1, block(p_path=STREAM)))
    client.sendall(data(1, prefixed(asked), end=True))


def taken(client: socket.socket) -> int:
    """Read to the end, and return how much there was."""
    count = 0
    while received := client.recv(1 << 16):
        count += len(received)
    return count


@pytest.mark.parametrize("ends", ["shut", "max_age"])
@pytest.mark.parametrize("under_way", [False, True])
def test_an_answer_reaches_a_client_that_still_talks(client: socket.socket, ends: str, under_way: bool) -> None:
    """As every client does that takes much: it sends WINDOW_UPDATEs and PINGs."""
    limits = Http2Limits(max_connection_age_s=0.0 if ends == "shut" else 0.5)
    with serving(GrpcOptions(http2=limits)) as server:
        ask(server, client, "hold" if under_way else f"many:{COUNT}")
        (connection,) = wait_for_connection(server)
        if under_way:
            server.wait_arrived()
        else:
            wait_until(lambda: not connection.streams and connection.sender.sent_bytes > COUNT * SIZE, "all is sent")
        if ends == "shut":
            server.call(connection.shut)
        wait_until(lambda: connection._notice_s > 0.0, "the notice")
        client.sendall(frames.frame(frames.PING, frames.ACK, 0, b"goodbye!"))
        wait_until(lambda: connection._going, "GOAWAY")
        if under_way:
            server.release("hold")
            wait_until(lambda: not connection.streams, "the answer is sent")
        client.sendall(PING * 3)
        assert taken(client) > (SIZE if under_way else COUNT * SIZE)
        client.close()
        wait_until(lambda: not len(server.front.connections), "the connection is gone")


def test_a_client_that_has_taken_all_and_stays_is_left(client: socket.socket) -> None:
    with serving() as server:
        ask(server, client, f"many:{COUNT}")
        (connection,) = wait_for_connection(server)
        wait_until(lambda: not connection.streams and connection.sender.sent_bytes > COUNT * SIZE, "all is sent")
        server.call(connection.shut)
        assert taken(client) > COUNT * SIZE
        wait_until(lambda: not len(server.front.connections), "the connection is gone")


def wait_for_connection(server: Server) -> list:  # type: ignore[type-arg]
    wait_until(lambda: len(server.front.connections) == 1, "the connection is there")
    return list(server.front.connections)


def test_no_request_is_lost_to_the_age_of_connections() -> None:
    """Of a real client, whose large requests are on their way when it hears that it is to connect anew.

    It must be able to keep them: what it has just begun when it hears is for the new connection, and by default gRPC's
    core library does not send requests over 256 KiB again, whosever the server is.
    """
    kept = [("grpc.max_receive_message_length", -1), ("grpc.per_rpc_retry_buffer_size", 1 << 24)]
    with (
        serving(GrpcOptions(http2=Http2Limits(max_connection_age_s=0.1))) as server,
        grpc.insecure_channel(server.url, kept) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked = request(values=[0.0] * 1_000_000)
        seen: set[object] = set()
        while len(seen) < 4:
            stub.ModelInfer(asked, timeout=20.0)
            seen |= set(server.front.connections)


def test_a_connection_that_is_being_accepted_when_the_server_stops_is_answered(client: socket.socket) -> None:
    with serving() as server:

        async def stop() -> None:
            client.connect(("127.0.0.1", server.port))
            client.sendall(frames.PREFACE + frames.settings(SETTINGS))
            client.sendall(headers(1, block(p_path=LIVE)) + data(1, prefixed(b""), end=True))
            await asyncio.sleep(0)  # it is accepted in this turn, and made in the next
            await server.front.close(5.0)

        asyncio.run_coroutine_threadsafe(stop(), server.front.loop).result(10)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert prefixed(pb.ServerLiveResponse(live=True).SerializeToString()) in answer
