"""One gRPC call: puts length-prefixed messages together under limits, keeps the deadline, ends with a status."""

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from app.edge.body_budget import TOO_MANY_BODIES
from app.grpc.compression import Inflation
from app.grpc.head import GrpcHead
from app.grpc.response_compressor import ResponseCompressor
from app.grpc.status import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    RESPONSE,
    SERVERS_FAULT,
    CallError,
    literal,
    trailers,
)
from app.http2.frames import END_STREAM, PROTOCOL_ERROR
from app.http2.open_connection import OpenConnection
from app.http2.sender import headers_frame
from app.http2.stream import Stream
from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from deployments.lane.wire import GRPC
from deployments.lane.work_queue import Work
from protocol.body_memory import body_memory
from protocol.errors import ServingError, Unavailable, unexpected
from protocol.grpc_status import GRPC_STATUS_NAMES

PREFIX: Final = struct.Struct(">BI")
# Above this size a message stays where it was put together; below it becomes bytes.
_LARGE_BYTES: Final = 1 << 16
# Messages of one call that are taken in one turn of the loop, and how large they may be together.
_TURN_MESSAGES: Final = 64
_TURN_BYTES: Final = 1 << 16
# A call is as good as over in the last part of its time, which is one of so many, and in the last tick of the clock.
_DUE_PART: Final = 4
_TICK_S: Final = 0.001
# Of a message that was decompressed, so many bytes are a unit of work.
_UNIT_BITS: Final = 6
# Stands for what has arrived where nothing has; one for all calls, and never added to.
_NOTHING: Final = bytearray()


class Call(Stream):
    """A call whose request messages come to `message`, and their end to `half_closed`."""

    __slots__ = (
        "_body",
        "_deferred",
        "_filled",
        "_granted_bytes",
        "_inflating",
        "_later",
        "_prefix",
        "_received",
        "_timer",
        "_unread",
        "_waiting_bytes",
        "compressor",
        "context",
        "done",
        "head",
        "headers_sent",
    )

    connection: OpenConnection
    wire: ClassVar[int] = GRPC
    """As what its errors are counted."""
    full = False
    """Whether whole messages that have arrived wait, until the call says by `go_on` that there is room for more."""

    def __init__(self, connection: OpenConnection, stream_id: int, head: GrpcHead) -> None:
        super().__init__(connection, stream_id)
        self.context = head.context
        self.head = head
        self.done = False
        """Whether the status was sent, or nobody would hear it."""
        self.headers_sent = False
        self.compressor: ResponseCompressor | None = None
        self._body: bytearray | memoryview | None = None
        self._filled = 0
        self._granted_bytes = 0
        """Length of the message whose whole memory is there, 0 otherwise."""
        self._prefix = b""
        self._received = 0
        self._inflating: Work | None = None
        self._deferred: tuple[Callable[[], None], ...] = ()
        """What is to be done once there is room."""
        self._unread = _NOTHING
        """What has arrived, and is for the next turns of the loop."""
        self._later: deque[tuple[int, Buffer] | None] = deque()
        """What came behind a message that is being decompressed."""
        self._waiting_bytes = 0
        """How large that message and what came behind it are."""
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout_s is not None:
            self._timer = self.context.loop.call_later(head.timeout_s, self._deadline_exceeded)

    # -- what calls implement --------------------------------------------------------------------------------------

    def message(self, message: Buffer) -> None:
        """Take a request message."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """No more messages will come."""
        raise NotImplementedError

    def caught_up(self) -> None:
        """All that has arrived is taken: let the client send more, if it may."""

    def cancelled(self) -> None:
        """The call is over before its answer: give up what is under way for it."""

    def under_way(self) -> Target | None:
        """Return the model that has a request of the call now, the first such one; None where none has."""
        return None

    # -- requests --------------------------------------------------------------------------------------------------

    def receive(self, data: Buffer, end: bool) -> None:
        """Put messages together from DATA."""
        size = len(data)
        filled = self._filled + size
        if filled < self._granted_bytes and size <= self.credit_bytes and not end:
            # The middle of a large message.
            self._body[self._filled : filled] = data  # type: ignore[index]
            self._filled = filled
            self._received += size
            self.credit_bytes -= size
            return
        if not self.spend(size):
            return
        self._received += size
        if end:
            self.peer_ended = True
            if self.head.content_length >= 0 and self._received != self.head.content_length:
                self.connection.reset(self, PROTOCOL_ERROR)
                return
        if self.done:
            return
        if self._unread:
            self._unread += data
        elif left := self._read(memoryview(data)):
            self._unread = bytearray(memoryview(data)[-left:])

    def receive_run(self, view: memoryview, at: int, head: memoryview, size: int) -> int:
        """Copy frames that are in the middle of a large message to where they belong."""
        filled, body = self._filled, self._body
        step = len(head) + size
        count = min((len(view) - at) // step, (self._granted_bytes - filled - 1) // size, self.credit_bytes // size)
        begun = filled
        for _ in range(count):
            start = at + len(head)
            if view[at:start] != head:
                break
            at += step
            body[filled : filled + size] = view[start:at]  # type: ignore[index]
            filled += size
        self._filled = filled
        self._received += filled - begun
        self.credit_bytes -= filled - begun
        return at

    def _read(self, view: memoryview) -> int:
        """Take what has arrived; returns how much is for a later turn, as most of a great number of messages is."""
        try:
            left = len(self._assemble(view))
            if left:
                self._defer(self._read_on)
            elif not self.done:
                if self.peer_ended:
                    if self._prefix:
                        raise CallError(INTERNAL, "the request ended in the middle of a message")
                    self._take(None)
                self.caught_up()
            return left
        except CallError as error:
            self.finish(error.code, error.message)
            return 0

    def _read_on(self) -> None:
        unread, self._unread = self._unread, _NOTHING
        if not self.done and (left := self._read(memoryview(unread))):
            del unread[:-left]  # moves nothing
            self._unread = unread

    def _defer(self, step: Callable[[], None]) -> None:
        """Take a step in the next turn, or the one after there is room."""
        if self.full:
            self._deferred = (*self._deferred, step)
        else:
            self.context.loop.call_soon(step)

    def go_on(self) -> None:
        """Take what has waited for room, from the next turn of the loop on."""
        steps, self._deferred = self._deferred, ()
        for step in steps:
            self.context.loop.call_soon(step)

    def _assemble(self, view: memoryview) -> memoryview:
        """Put messages together; returns what is more than one turn's work, or has no room."""
        left, left_bytes = _TURN_MESSAGES, _TURN_BYTES
        while view and not self.done:
            if left <= 0 or left_bytes <= 0:
                return view
            if self._body is None:
                if self.full and not self._prefix:  # what has begun has its time to arrive
                    return view
                needed = PREFIX.size - len(self._prefix)
                self._prefix += view[:needed]
                view = view[needed:]
                if len(self._prefix) < PREFIX.size:
                    break
                self._begin(len(view))
                if self.done:  # there was no memory for it
                    return view[:0]
            size = len(view)
            view = self._fill(view)
            if self._body is None:
                left -= 1
                left_bytes -= size - len(view)
        if (self._prefix or self._waiting_bytes) and not self.done:
            self._watch()
        return view[:0]

    def _watch(self) -> None:
        """Have the connection count what is held here, and wait for the rest of a message for as long as it may take.

        A thread may take any time.
        """
        incomplete = self.connection.incomplete
        deadline_s = incomplete.get(self, math.inf)
        if deadline_s != math.inf:
            return
        if self._prefix:
            length = PREFIX.unpack(self._prefix)[1] if self._body is not None else 0
            timeout_s = self.connection.limits.body_timeout_s + length / self.context.options.min_message_bytes_per_s
            incomplete[self] = self.context.loop.time() + timeout_s
        elif self._waiting_bytes:
            incomplete[self] = math.inf
        else:
            incomplete.pop(self, None)

    def _begin(self, available: int) -> None:
        """Start a message of which `available` bytes are there."""
        flag, length = PREFIX.unpack(self._prefix)
        if flag > 1:
            raise CallError(INTERNAL, "malformed message")
        if length > self.head.max_message_bytes:
            raise CallError(
                RESOURCE_EXHAUSTED,
                f"SERVER: Received message larger than max ({length} vs. {self.head.max_message_bytes})",
            )
        self._filled = 0
        self.connection.incomplete.pop(self, None)  # whose time was that of a prefix in pieces
        if length <= max(available, self.connection.initial_credit_bytes - PREFIX.size):
            try:
                self._body = body_memory(length)
            except MemoryError as error:
                self.fail(unexpected(error))
                return
            self._granted_bytes = length
            if length > available + self.credit_bytes:
                self.grant(length - available - self.credit_bytes)
        else:
            self._body = bytearray()
            self.connection.reservations.take(self, length)

    def granted(self) -> None:
        """Go on with a large message whose memory is reserved."""
        assert self._body is not None
        length = PREFIX.unpack(self._prefix)[1]
        try:
            whole = body_memory(length)
        except MemoryError as error:
            self.fail(unexpected(error))
            return
        whole[: self._filled] = self._body
        self._body = whole
        self._granted_bytes = length
        missing = length - self._filled - self.credit_bytes
        if missing > 0:
            self.grant(missing)

    def _fill(self, view: memoryview) -> memoryview:
        """Add to the message; returns what follows it."""
        body = self._body
        assert body is not None
        length: int = PREFIX.unpack(self._prefix)[1]
        taken = min(length - self._filled, len(view))
        if isinstance(body, bytearray):
            body += view[:taken]
        else:
            body[self._filled : self._filled + taken] = view[:taken]
        self._filled += taken
        if self._filled == length:
            compressed = self._prefix[0]
            self._body, self._prefix = None, b""
            self._granted_bytes = 0
            self.connection.incomplete.pop(self, None)
            if length > self.connection.initial_credit_bytes - PREFIX.size:
                self.connection.reservations.give_back(self)
            self._take((compressed, memoryview(body) if length > _LARGE_BYTES else bytes(body)))
        return view[taken:]

    @property
    def behind(self) -> bool:
        """Whether something has arrived that is not taken yet; the rest of a message may come, or waits for memory."""
        return bool(self._unread or self._inflating or self._later or self._body is not None)

    def _take(self, item: tuple[int, Buffer] | None) -> None:
        """Hand on a message, or (None) the end of messages, after what waits for one that is being decompressed."""
        if self._inflating or self._later:
            self._later.append(item)
            self._waiting_bytes += 0 if item is None else len(item[1])
        else:
            self._hand_on(item)

    def _hand_on(self, item: tuple[int, Buffer] | None) -> None:
        if item is None:
            self.half_closed()
        elif not item[0]:
            self.message(item[1])
        else:
            ratio = self.context.options.max_decompression_ratio
            inflation = Inflation(self.head.encoding, item[1], self.head.max_message_bytes, ratio)
            message = inflation.begin()
            if message is None:
                size = len(item[1])
                self._waiting_bytes += size
                self._inflating = self.context.packing.submit(
                    inflation.complete, lambda message, error: self._inflated(message, error, size)
                )
            else:
                self.connection.extra_units += len(message) >> _UNIT_BITS
                self.message(message)

    def _inflated(self, message: Buffer, error: BaseException | None, size: int) -> None:
        self._inflating = None
        if isinstance(error, CallError):
            self.finish(error.code, error.message)
        elif error is not None:
            self.fail(unexpected(error))
        else:
            self._waiting_bytes -= size
            self.message(message)
            self._take_later()

    def _take_later(self) -> None:
        """Hand on what has waited, a turn's work of it."""
        left, left_bytes = _TURN_MESSAGES, _TURN_BYTES
        try:
            while self._later and not (self.done or self._inflating):
                if left <= 0 or left_bytes <= 0 or self.full:
                    self._defer(self._take_later)
                    return
                item = self._later.popleft()
                size = 0 if item is None else len(item[1])
                self._waiting_bytes -= size
                left -= 1
                left_bytes -= size
                self._hand_on(item)
            if not self.done:
                self._watch()
                self.caught_up()
        except CallError as error:
            self.finish(error.code, error.message)

    # -- the answer ------------------------------------------------------------------------------------------------

    def send_headers(self) -> None:
        """Begin the answer, once."""
        if not self.headers_sent:
            self.headers_sent = True
            block = self._table_update() + RESPONSE
            if self.head.response_encoding:
                block += literal(b"grpc-encoding", self.head.response_encoding)
            self.connection.sender.write(headers_frame(self.stream_id, block, 0))

    def send_message(self, parts: Sequence[Buffer], size: int, compressed: bool = False) -> None:
        """Send one message."""
        self.send_headers()
        self.send_data((PREFIX.pack(compressed, size), *parts))

    def finish(self, code: int, message: str, target: Target | None = None) -> None:
        """End the call with a status: an error, of the target if it has one, at once; OK after all that was sent."""
        if self.done:
            return
        if self.compressor is not None and self.compressor.busy and not code:
            self.compressor.finish_after()
            return
        self._end()
        if self.connection.reservations.active:  # the end may have to wait behind answers
            self.connection.reservations.give_back(self)
        if code:
            self.note(code, message, target)
            self.cancelled()
        block = trailers(code, message, self.context.options.max_status_message_bytes)
        if not self.headers_sent:
            block = RESPONSE + block
        self._send_end(block)

    def check_access(self) -> None:
        """End the call if its key is not good any more."""
        method = self.head.method
        if method is not None:
            try:
                self.context.options.access.check(method.category, method.name, self.head.metadata.items())
            except ServingError as error:
                self.finish(error.grpc_code, error.message, self.under_way())

    def fail(self, error: ServingError) -> None:
        """End the call with an error."""
        self.finish(error.grpc_code, error.message)

    def note(self, code: int, message: str, target: Target | None = None) -> None:
        """Log an error that is sent to the client, and count it if no target had the request."""
        if target is None:
            self.context.refusals.count(self.wire, code)
        transport = self.connection.transport
        self.context.refusals.note(
            f"gRPC {GRPC_STATUS_NAMES[code]}", message, transport, target, fault=code in SERVERS_FAULT
        )

    def _send_end(self, block: bytes) -> None:
        self.connection.sender.end(self, headers_frame(self.stream_id, self._table_update() + block, END_STREAM))
        if self.sent_end:
            self.connection.close_stream(self)

    def _table_update(self) -> bytes:
        update, self.connection.table_update = self.connection.table_update, b""
        return update

    def _end(self) -> None:
        self.done = True
        self._body = None
        self._granted_bytes = 0
        self._deferred = ()
        self._unread = _NOTHING
        self._later.clear()
        self._waiting_bytes = 0
        if self._inflating is not None:
            self._inflating.withdraw()
            self._inflating = None
        if self.compressor is not None:
            self.compressor.give_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.connection.incomplete:
            self.connection.incomplete.pop(self, None)

    def aborted(self) -> None:
        """Nobody waits for the answer any more."""
        if not self.done:
            self._end()
            self.cancelled()

    @property
    def due(self) -> bool:
        """Whether the deadline has passed, or is near: the client's clock began earlier."""
        if self._timer is None or self.head.timeout_s is None:
            return False
        left_s = self.opened_s + self.head.timeout_s - self.context.loop.time()
        return left_s < max(self.head.timeout_s / _DUE_PART, _TICK_S)

    @property
    def held_bytes(self) -> int:
        """What has come of the message that is being put together, and what waits for one that is decompressed."""
        return self._waiting_bytes + (self._filled if self._body is not None else 0)

    def crowded_out(self) -> None:
        """Refuse the call: its client may try again when others have sent all of theirs."""
        self.fail(Unavailable(TOO_MANY_BODIES))

    def expired(self) -> None:
        """A message did not arrive in time."""
        self.finish(DEADLINE_EXCEEDED, "the message did not arrive in time")

    def _deadline_exceeded(self) -> None:
        self._timer = None
        self.finish(DEADLINE_EXCEEDED, "Deadline Exceeded", self.under_way())
