"""Lanes between a client fleet and replicas in one loop, over real Unix sockets, with an echo model behind them."""

import asyncio
import socket
import tempfile
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from time import monotonic_ns
from typing import Any

from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeters
from deployments.lane.address import ReplicaAddress
from deployments.lane.fleet import GONE_S, Fleet
from deployments.lane.server import LaneServer
from deployments.lane.slow_codec import SlowCodec
from protocol.errors import InvalidArgument, ServingError
from protocol.infer import InferRequest, InferResponse
from protocol.trace import Trace
from tests.deployments.fakes import slow_queue

NODE = "node-1"


class EchoCodec:
    """A request is its body; so is the response."""

    def decode(self, body: Any, json_length: int | None, reply: Any, context: Any = None) -> InferRequest:
        if bytes(body[:3]) == b"bad":
            raise InvalidArgument("a bad request")
        request = InferRequest({}, 1, reply, context=context)
        request.parameters = {"body": body, "json_length": json_length}  # type: ignore[dict-item]
        return request

    def reads_long(self, body: Any) -> bool:
        return False

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        return False

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        assert request.parameters is not None
        return request.parameters["json_length"], [request.parameters["body"]]  # type: ignore[return-value]


class EchoModel:
    """Answers at once, or holds requests until told."""

    def __init__(self) -> None:
        self.codecs = (EchoCodec(),)
        self.slow = SlowCodec(self.codecs, slow_queue())
        self.capacity = 2
        self.sequence_idle_us = 0
        self.says_ready = True
        self.gpus: tuple[str, ...] = ()
        self.interface = ""
        self.held: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.hold = False
        self.submit_request: Callable[[InferRequest], None] = self._submit
        self.cancel_request: Callable[[InferRequest], None] = self.cancelled.append

    def end_sequence(self, sequence_id: int | str) -> None:
        """Hold no sequences."""

    def follow(self, request: InferRequest, trace: Trace) -> None:
        """Say something of the request, and of a model that it asks."""
        request.trace = trace
        trace.mark("REQUEST_START", monotonic_ns())
        trace.attributes["seen_by"] = "echo"
        trace.child("called", 1)

    def _submit(self, request: InferRequest) -> None:
        self.held.append(request)
        if not self.hold:
            self.release()

    def release(self) -> None:
        held, self.held = self.held, []
        for request in held:
            self._end(request)
            request.reply(request, InferResponse({}))

    @staticmethod
    def _end(request: InferRequest) -> None:
        if request.trace is not None:
            request.trace.mark("REQUEST_END", monotonic_ns())

    def stream(self, count: int) -> None:
        held, self.held = self.held, []
        for request in held:
            self._end(request)
            for number in range(count):
                request.reply(request, InferResponse({}, final=number == count - 1))


class Sink:
    """Collects what one request gets; one that keeps also holds on to the memory, as for a client that reads slowly."""

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self.kept: list[Any] = []
        self.responses: list[bytes] = []
        self.json_length: int | None = -1
        self.error: ServingError | None = None
        self.done = asyncio.Event()

    def on_response(self, json_length: int | None, parts: Any, final: bool) -> None:
        self.json_length = json_length
        if self._keep:
            self.kept.extend(parts)
        self.responses.append(b"".join(parts))
        if final:
            self.done.set()

    def on_error(self, error: ServingError) -> None:
        self.error = error
        self.done.set()


class Replica:
    """A lane server with one echo model, `echo` version 1."""

    def __init__(self, folder: str, name: str, loop: asyncio.AbstractEventLoop, interface: str = "") -> None:
        self.model = EchoModel()
        self.model.interface = interface
        self.server = LaneServer("secret", loop, hello_timeout_s=0.5)
        self.server.set_model("echo", 1, self.model)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.mark = Path(folder) / name
        self.mark.touch()
        path = f"{self.mark}.at"
        self.sock.bind(path)
        self.sock.listen(16)
        self.sock.setblocking(False)
        self.address = ReplicaAddress(name, NODE, path, "", 0, "secret")

    def die(self, mark: str = "") -> None:
        """Go away as a killed process does: every connection breaks. One that ends itself leaves a mark."""
        self.mark.write_text(f"{len(self.server.connections)}\n{mark}")
        for listener in self.server._listeners:
            listener.close()
        for connection in tuple(self.server.connections):
            connection.abort()

    async def come_back(self) -> None:
        """Listen again, as the replica that is made in place of a dead one; its lane is the same."""
        Path(self.address.unix_path).unlink()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.bind(self.address.unix_path)
        self.sock.listen(16)
        self.sock.setblocking(False)
        await self.server.listen([self.sock])


class Lanes:
    """A fleet and some replicas; use as an async context manager."""

    def __init__(self, count: int = 1, max_inflight: int = 100, interface: str = "", *, gone_s: float = GONE_S) -> None:
        self._interface = interface
        self._gone_s = gone_s
        self._count = count
        self._max_inflight = max_inflight
        self.counted = Totals()
        self.news_count = 0
        self.replicas: list[Replica] = []
        self._folder = tempfile.TemporaryDirectory()

    async def __aenter__(self) -> "Lanes":
        loop = asyncio.get_running_loop()
        refusals, self.meters = Refusals(self.counted), RequestMeters(self.counted)
        self.fleet = Fleet(
            *(NODE, loop, self._changed, refusals, self._max_inflight),
            away_s=0.0,
            meters=self.meters,
            gone_s=self._gone_s,
        )
        for number in range(self._count):
            replica = Replica(self._folder.name, f"r{number}", loop, self._interface)
            await replica.server.listen([replica.sock])
            self.replicas.append(replica)
        self.publish()
        await self.until(lambda: self.lanes_open == self._count)
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.fleet.close()
        for replica in self.replicas:
            await replica.server.drain(0.0)
        await asyncio.sleep(0)
        self._folder.cleanup()

    def _changed(self) -> None:
        self.news_count += 1

    @property
    def lanes_open(self) -> int:
        target: Any = self.fleet.target("echo")
        return len(target.choice.lanes) if target else 0

    def publish(self, *replicas: Replica) -> None:
        chosen = replicas or self.replicas
        self.fleet.set_replicas("echo#v1", {replica.address.replica_id: replica.address for replica in chosen})

    def send(self, body: bytes = b"hello", json_length: int | None = None, *, keep: bool = False) -> tuple[Sink, Any]:
        target = self.fleet.target("echo")
        assert target is not None
        sink = Sink(keep=keep)
        return sink, target.submit((body,), json_length, sink)

    async def ask(self, body: bytes = b"hello", json_length: int | None = None) -> Sink:
        sink, _ = self.send(body, json_length)
        await asyncio.wait_for(sink.done.wait(), 5)
        return sink

    async def open_arenas(self) -> tuple[Any, Any]:
        """Return the two ends of the first lane, which pass large bodies by shared memory from now on."""
        target: Any = self.fleet.target("echo")
        (lane,) = target.choice.lanes
        (connection,) = self.replicas[0].server.connections
        body = bytes(range(256)) * 1000
        assert (await self.ask(body)).responses == [body]  # by socket: the arenas are made by it
        await self.until(lambda: lane._arena_open and connection._arena_open)
        return lane, connection

    @staticmethod
    async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.001)


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
