"""The replica's end of a lane: decodes each request once, submits it to the core, sends back finished bytes."""

import asyncio
import hmac
import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import orjson

from deployments.lane.frames import (
    COPY,
    FINAL,
    GONE,
    HEADER_SIZE,
    LISTENS,
    MAX_FRAME_BYTES,
    NO_JSON_LENGTH,
    PATIENT,
    PROTOCOL_VERSION,
    QUEUE_FULL,
    REFUSED,
    TRACED,
    UNKNOWN_SEQUENCE,
    Buffer,
    FrameProtocol,
    Kind,
    LaneProtocolError,
)
from deployments.lane.lane_model import LaneModel
from deployments.lane.lone_requests import LoneRequests
from deployments.lane.slow_codec import Encoded
from deployments.lane.trace_frames import read_identity, records, wall_ahead_ns
from deployments.lane.wire import LONG_BYTES
from deployments.lane.work_queue import Work
from deployments.log.line_format import about_trace
from protocol.errors import Cancelled, Internal, QueueFull, ServingError, Unavailable, UnknownSequence
from protocol.infer import COPIED, InferRequest, InferResponse
from protocol.trace import Trace

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 5.0
MAX_HELLO_BYTES: Final = 1024
MAX_MODELS: Final = 1 << 16
"""As many as a frame can name."""
MAX_STRANGERS: Final = 64
"""Connections that have not said the secret yet; one more, and the oldest of them is closed."""


class LaneServer:
    """Accepts lanes for one replica and keeps the table of models that their requests index.

    A model keeps its index for as long as it is in the table, and no other gets that before all others had their turn:
    frames on their way when the table changes find their model, or a clear error. One of another interface has another
    index, and what was there before keeps its own as a former one, until it is let go of. `spill` tells clients to
    prefer other replicas while these have an idle instance.
    """

    def __init__(
        self,
        secret: str,
        loop: asyncio.AbstractEventLoop,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        lane_count_changed: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.hello_timeout_s = hello_timeout_s
        self.secret = secret.encode()
        self.loop = loop
        self._lane_count_changed = lane_count_changed
        self.spill = False
        self.models: dict[int, LaneModel] = {}
        self.connections: set[LaneServerConnection] = set()
        self._strangers: dict[LaneServerConnection, None] = {}
        self._rows: dict[tuple[str, int], tuple[int, str]] = {}
        """Index and fault of each model version."""
        self._former: dict[int, tuple[str, int]] = {}
        """What served as versions before they had other interfaces, by index."""
        self._last_index = -1
        self._table_due = False
        self._listeners: list[asyncio.Server] = []
        self.lone = LoneRequests(self.connections, loop)

    async def listen(self, sockets: list[Any]) -> None:
        """Start accepting on listening sockets."""
        for sock in sockets:
            self._listeners.append(await self.loop.create_server(lambda: LaneServerConnection(self), sock=sock))

    def add_lane(self, connection: "LaneServerConnection") -> None:
        """Count a connection that has said the secret, and tell it what is served."""
        self.connections.add(connection)
        self.lone.lane_added(connection)
        self._lane_count_changed(len(self.connections))
        self._send_table([connection])

    def forget_lane(self, connection: "LaneServerConnection") -> None:
        """Count it no longer."""
        self.connections.discard(connection)
        self._lane_count_changed(len(self.connections))

    def add_stranger(self, connection: "LaneServerConnection") -> None:
        """Count a connection that has yet to say the secret."""
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self.forget_stranger(oldest)
            oldest.abort()
        self._strangers[connection] = None

    def forget_stranger(self, connection: "LaneServerConnection") -> None:
        """Count it no longer."""
        self._strangers.pop(connection, None)

    def set_model(self, name: str, version: int, model: LaneModel | None, fault: str = "") -> None:
        """Add, replace or (None) withdraw a model version and tell every client; `fault` says why it serves no more."""
        key = (name, version)
        index = self._rows[key][0] if key in self._rows else self._new_index()
        before = self.models.get(index)
        if model is not None and (before is None or before.interface != model.interface):
            former = next((each for each in self._former if self.models[each] is model), MAX_MODELS)
            if before is not None:
                self._former[index] = key
            if self._former.pop(former, None) is not None:  # it is back
                index = former
            elif before is not None:
                index = self._new_index()
        if model is not None or fault:
            self._rows[key] = index, fault
        else:
            self._rows.pop(key, None)
        if model is not None:
            self.models[index] = model
        else:
            self.models.pop(index, None)
        self._table_changed()

    def why_gone(self, index: int) -> str:
        """Return why there is no model of an index, to the client of a request that was on its way to it."""
        for (name, _), (row, fault) in self._rows.items():
            if row == index and fault:
                return f"model '{name}' is not ready: {fault}"
        return "the model has been unloaded"

    def forget_former(self, model: LaneModel) -> None:
        """Give nothing more to what served as a version before it had another interface."""
        for index in [index for index in self._former if self.models[index] is model]:
            del self._former[index], self.models[index]
            self._table_changed()

    def _table_changed(self) -> None:
        if not self._table_due:
            self._table_due = True
            self.loop.call_soon(self.send_due_table)

    def send_due_table(self) -> None:
        """Tell every client what is served, once for all that has changed in a turn of the loop: hundreds may go."""
        if self._table_due:
            self._table_due = False
            self._send_table(self.connections)

    def _send_table(self, clients: Iterable["LaneServerConnection"]) -> None:
        table = self.table()
        for client in clients:
            client.send(Kind.TABLE, 0, (table,), size=len(table))

    def _new_index(self) -> int:
        taken = {*(index for index, _ in self._rows.values()), *self._former}
        while (index := (self._last_index + 1) % MAX_MODELS) in taken:
            self._last_index = index
        self._last_index = index
        return index

    def table(self) -> bytes:
        """Return the table of models as the TABLE frame carries it; of two rows of one interface the last counts."""
        former = [(index, *key, "", *self._columns(index), True) for index, key in self._former.items()]
        rows = [(index, *key, fault, *self._columns(index)) for key, (index, fault) in self._rows.items()]
        return orjson.dumps([*former, *rows])

    def _columns(self, index: int) -> tuple[Any, ...]:
        if (model := self.models.get(index)) is None:
            return ()
        return model.capacity, self.spill, model.sequence_idle_us, model.says_ready, model.gpus, model.interface

    @property
    def inflight_count(self) -> int:
        """Return how many requests are inside."""
        return sum(len(connection.inflight) for connection in self.connections)

    async def drain(self, timeout_s: float, left_s: Callable[[], float] | None = None) -> None:
        """Tell clients to go elsewhere, wait for what is inside, close.

        `left_s` returns how many seconds are left where that may be less than what is left of `timeout_s`.
        """
        for listener in self._listeners:
            listener.close()
        for stranger in tuple(self._strangers):
            stranger.close()
        for connection in self.connections:
            connection.send(Kind.GOAWAY, 0, size=0, number=min(math.ceil(timeout_s), MAX_MODELS - 1))
        deadline_s = self.loop.time() + timeout_s
        while self.inflight_count and self.loop.time() < deadline_s and (left_s is None or left_s() > 0):
            await asyncio.sleep(0.02)
        for connection in self.connections:
            connection.close()


class LaneServerConnection(FrameProtocol):
    """One client's lane."""

    def __init__(self, server: LaneServer) -> None:
        super().__init__(server.loop)
        self.max_frame_bytes = HEADER_SIZE + MAX_HELLO_BYTES
        self._server = server
        self._welcome = False
        self._hello_timer: asyncio.TimerHandle | None = None
        self.inflight: dict[int, tuple[LaneModel, InferRequest | Work]] = {}
        """By call; work in place of a request that is being decoded, or whose last response is being encoded."""
        self._encoding: dict[int, deque[Work]] = {}
        """By call; responses that are being encoded and not the last."""
        self._lone_calls: set[int] = set()
        """Those that wait for their turn."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client some seconds to say the secret."""
        super().connection_made(transport)
        self._server.add_stranger(self)
        self._hello_timer = self._loop.call_later(self._server.hello_timeout_s, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel requests whose answers the client cannot get any more."""
        super().connection_lost(exc)
        self._server.forget_lane(self)
        self._server.forget_stranger(self)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        inflight, self.inflight = self.inflight, {}
        for call, entry in inflight.items():
            self._give_up(call, *entry)

    def frame_received(self, kind: int, flags: int, number: int, call: int, json_length: int, body: Buffer) -> None:
        """Take a client's frame; before a right HELLO nothing else is answered."""
        if not self._welcome:
            self._take_hello(kind, number, body)
        elif kind == Kind.REQUEST:
            self._take_request(number, call, flags, json_length, body)
        elif kind == Kind.TRACED_REQUEST:
            self._take_request(number, call, flags, json_length, body, traced=True)
        elif kind == Kind.LONE_REQUEST:
            self._take_lone(number, call, flags, json_length, body)
        elif kind == Kind.CANCEL and not call:
            self._end_sequence(number, body)
        elif kind == Kind.CANCEL and flags & LISTENS:
            self._tell_cancelled(call)
        elif kind == Kind.CANCEL:
            self._lone_calls.discard(call)
            entry = self.inflight.pop(call, None)
            if entry is not None:
                self._give_up(call, *entry)
        else:
            raise LaneProtocolError(f"unexpected frame of kind {kind}")

    def body_lost(self, call: int, error: ServingError) -> None:
        """Refuse a request."""
        self._refuse(call, error)

    def _tell_cancelled(self, call: int) -> None:
        """Give a call up whose client hears the answer still; one that no model has got yet ends."""
        entry = self.inflight.get(call)
        if entry is not None:
            model, request = entry
            if isinstance(request, InferRequest):
                model.cancel_request(request)
                return
            if not model.slow.decodes(request):  # its last response is being encoded
                return
            del self.inflight[call]
            model.slow.withdraw(request)
        elif call in self._lone_calls:
            self._lone_calls.remove(call)
        else:
            return
        self._send_error(call, Cancelled(""))

    def _take_lone(self, number: int, call: int, flags: int, json_length: int, body: Buffer) -> None:
        if self.shared_offset >= 0:
            body = self.lend(body)
        wire, traced = flags & ~(TRACED | PATIENT), bool(flags & TRACED)

        def start() -> None:
            if call in self._lone_calls:  # else it was given up
                self._lone_calls.remove(call)
                self.shared_offset = -1
                self._take_request(number, call, wire, json_length, body, traced)

        self._lone_calls.add(call)
        self._server.lone.add(self, call, start, patient=bool(flags & PATIENT))

    def _end_sequence(self, number: int, body: Buffer) -> None:
        model = self._server.models.get(number)
        if model is not None and body:
            model.end_sequence(orjson.loads(body))

    def _take_hello(self, kind: int, version: int, body: Buffer) -> None:
        if kind != Kind.HELLO or not hmac.compare_digest(bytes(body), self._server.secret):
            raise LaneProtocolError("wrong secret")
        if version != PROTOCOL_VERSION:
            self._send_error(
                0, Unavailable(f"the replica speaks version {PROTOCOL_VERSION} of the lane protocol, not {version}")
            )
            self.close()
            return
        assert self._hello_timer is not None
        self._hello_timer.cancel()
        self._welcome = True
        self.max_frame_bytes = MAX_FRAME_BYTES
        self._server.forget_stranger(self)
        assert self._transport is not None
        if self._transport.get_extra_info("socket").family == socket.AF_UNIX:
            self.share()
        self._server.add_lane(self)

    def _take_request(
        self, number: int, call: int, wire: int, json_length: int, body: Buffer, traced: bool = False
    ) -> None:
        """Decode and submit, or answer why that is not possible."""
        if self.shared_offset >= 0:
            body = self.lend(body)
        trace, flags = None, 0
        if traced:
            trace, body = read_identity(body)
        if wire & COPY:
            wire, flags = wire & ~COPY, COPIED
        model = self._server.models.get(number)
        if model is None:
            self._server.send_due_table()  # by which the client knows where else to go
            self._refuse(call, Unavailable(self._server.why_gone(number)), GONE)
            return
        json_size = None if json_length == NO_JSON_LENGTH else json_length
        # The requests of a sequence stay in their order.
        behind = model.slow.decoding_count and model.sequence_idle_us
        if behind or (len(body) > LONG_BYTES and model.codecs[wire].reads_long(body)):
            self._decode_slowly(model, call, wire, json_size, body, trace, flags)
            return
        try:
            request = model.codecs[wire].decode(body, json_size, self._reply, (call, wire))
        except ServingError as error:
            self._refuse(call, error)
            return
        except Exception:
            logger.exception("a request could not be decoded", extra=about_trace("", None, trace))
            self._refuse(call, Internal("the request could not be decoded"))
            return
        request.flags |= flags
        self._submit(model, call, request, trace)

    def _decode_slowly(
        self,
        model: LaneModel,
        call: int,
        wire: int,
        json_size: int | None,
        body: Buffer,
        trace: Trace | None,
        flags: int,
    ) -> None:
        def decoded(result: InferRequest | ServingError) -> None:
            del self.inflight[call]
            if isinstance(result, ServingError):
                self._refuse(call, result)
            else:
                result.flags |= flags
                self._submit(model, call, result, trace)

        work = model.slow.decode(wire, body, json_size, self._reply, (call, wire), decoded, trace)
        self.inflight[call] = (model, work)

    def _submit(self, model: LaneModel, call: int, request: InferRequest, trace: Trace | None) -> None:
        request.over_lane = True
        request.room = self.room
        self.inflight[call] = (model, request)
        if trace is not None:
            model.follow(request, trace)
        model.submit_request(request)

    def _reply(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        call, wire = request.context
        entry = self.inflight.get(call)
        if entry is None:
            return
        model = entry[0]
        if request.trace is not None and (not isinstance(result, InferResponse) or result.final):
            parts = records(request.trace, wall_ahead_ns())
            self.send(Kind.TRACE, call, parts, size=sum(map(len, parts)))
        if isinstance(result, InferResponse):
            codec = model.codecs[wire]
            behind = call in self._encoding or model.slow.in_order(wire)
            if behind or codec.takes_long(request, result):
                done = partial(self._encoded, call, result.final)
                self._note_encoding(call, model, model.slow.encode(wire, request, result, done), final=result.final)
                return
            try:
                json_length, parts = codec.encode(request, result)
            except ServingError as error:
                failed = error.without_frames()
            except Exception:
                logger.exception("a response could not be encoded", extra=about_trace("", None, request.trace))
                failed = Internal("the response could not be encoded")
            else:
                self._send_response(call, json_length, parts, final=result.final)
                return
            if not result.final:
                self._give_up(call, *entry)
            result = failed
        elif call in self._encoding:
            done = partial(self._encoded, call, True)
            self._note_encoding(call, model, model.slow.fail(wire, result, done), final=True)
            return
        del self.inflight[call]
        self._send_error(call, result)

    def _note_encoding(self, call: int, model: LaneModel, work: Work, *, final: bool) -> None:
        if final:
            self.inflight[call] = (model, work)
        else:
            self._encoding.setdefault(call, deque()).append(work)

    def _encoded(self, call: int, final: bool, result: Encoded | ServingError) -> None:
        if not final:
            works = self._encoding[call]
            works.popleft()
            if not works:
                del self._encoding[call]
        if isinstance(result, ServingError):
            entry = self.inflight.pop(call)
            if not final:
                self._give_up(call, *entry)
            self._send_error(call, result)
        else:
            self._send_response(call, *result, final=final)

    def _send_response(self, call: int, json_length: int | None, parts: Sequence[Buffer], *, final: bool) -> None:
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else memoryview(part).nbytes
        if HEADER_SIZE + size > MAX_FRAME_BYTES:
            entry = self.inflight.pop(call)
            if not final:
                self._give_up(call, *entry)
            self._send_error(call, Internal(f"a response of {size} bytes is more than a replica can send"))
            return
        if final:
            del self.inflight[call]
        self.send(
            Kind.RESPONSE,
            call,
            parts,
            size=size,
            flags=FINAL if final else 0,
            json_length=NO_JSON_LENGTH if json_length is None else json_length,
        )

    def _refuse(self, call: int, error: ServingError, flags: int = 0) -> None:
        error.refused = True
        self._send_error(call, error, flags)

    def _send_error(self, call: int, error: ServingError, flags: int = 0) -> None:
        message = error.message.encode("utf-8", "replace")
        flags |= FINAL | QUEUE_FULL if isinstance(error, QueueFull) else FINAL
        if error.refused:
            flags |= REFUSED | UNKNOWN_SEQUENCE if isinstance(error, UnknownSequence) else REFUSED
        self.send(Kind.ERROR, call, (message,), size=len(message), flags=flags, number=error.grpc_code)

    def _give_up(self, call: int, model: LaneModel, request: InferRequest | Work) -> None:
        """Let go of a call that is not in flight any more."""
        for work in self._encoding.pop(call, ()):
            model.slow.withdraw(work)
        if isinstance(request, Work):
            model.slow.withdraw(request)
        else:
            model.cancel_request(request)
