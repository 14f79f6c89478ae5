"""The end of a lane that asks: many calls in flight on one connection, each answered to its sink.

It is an ingress's, or that of a replica whose ensembles or Python models ask models of other processes.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Final, NamedTuple, Protocol

import orjson

from deployments.core.duration_buckets import BOUNDS_NS
from deployments.core.request_meter import FIRST_BUCKET, SUM_NS, Cells
from deployments.lane.arena import ARENA_BYTES
from deployments.lane.frames import (
    COPY,
    FINAL,
    GONE,
    HEADER_SIZE,
    LISTENS,
    MAX_FRAME_BYTES,
    NO_JSON_LENGTH,
    PROTOCOL_VERSION,
    QUEUE_FULL,
    REFUSED,
    TRACED,
    UNKNOWN_SEQUENCE,
    Buffer,
    FrameProtocol,
    Kind,
)
from deployments.lane.sink import Sink, VersionTarget
from deployments.lane.trace_frames import IDENTITY_BYTES, identity, take_records, wall_ahead_ns
from protocol.errors import InvalidArgument, QueueFull, ServingError, from_grpc_code
from protocol.sequence_mark import SequenceMark
from protocol.trace import Trace

MAX_INFLIGHT_BYTES: Final = 1 << 30
SMALL_CALL_BYTES: Final = 64 << 10
_LITTLE_INFLIGHT_BYTES: Final = 64 << 20
_MAX_CALL_BYTES: Final = MAX_FRAME_BYTES - HEADER_SIZE - IDENTITY_BYTES
# Half of an arena.
_MAX_LENT_BYTES: Final = ARENA_BYTES // 2
NO_GPUS: Final[frozenset[str]] = frozenset()


class CallTarget(Protocol):
    """What a call is for: a model version, and the way to send it to another replica."""

    model_name: str
    version: int

    @property
    def may_get_replica(self) -> bool:
        """Whether requests wait while there is no replica: one is being made, or is made for who asks."""
        ...

    def serves(self, interface: str) -> bool:
        """Whether all the lanes lead to an interface of the model, "" for any; where there is none, it may come."""
        ...

    def send(self, call: "LaneCall") -> ServingError | None:
        """Put a call on a lane; returns why that is not possible."""
        ...

    def send_alone(self, call: "LaneCall") -> ServingError | None:
        """Put a call on a lane that shall run with nothing else in its replica; returns as `send`."""
        ...

    def start_anew(self, call: "LaneCall") -> ServingError | None:
        """Put a call on the lane of its sequence, which starts with it or one before it; returns as `send`."""
        ...

    def fail(self, call: "LaneCall", error: ServingError) -> None:
        """Answer a call with its replica's error."""
        ...

    def refuse(self, call: "LaneCall", error: ServingError) -> None:
        """Answer and count a call that no replica answers."""
        ...

    def send_again(self, call: "LaneCall") -> bool:
        """Send a call whose replica has the version no more to one that has it; returns whether there is one."""
        ...

    def send_elsewhere(self, call: "LaneCall") -> bool:
        """Send a call for which its replica's queue is full to another one; returns whether there was one."""
        ...

    def seek_sequence(self, call: "LaneCall") -> bool:
        """Send a call whose sequence its replica does not know to another one; returns whether there was one."""
        ...


class LaneCall:
    """One request under way. Its parts are kept until it is answered, so that another replica can be asked instead.

    `deaths` counts the replicas that died while it was in them, perhaps of it, and `lone_deaths`, set with the first of
    them, those that it had to itself; `given_up`, when set, hears that it is `cancelled`, which may happen while others
    are refused beside it; `refused_by` are the lanes to replicas whose queues had no room for it, or that do not know
    its sequence. A client's request is counted in `cells`. `trace` is None for one that is not traced. A request with a
    `mark` is within a sequence, and no other replica than the one that holds it can answer it. `gpus` are those in
    whose memory it names inputs. One with an `interface` is sent again only to what has that. `others` are versions
    that may hold its sequence, if its own does not. One that is `copied` is for a shadow.
    """

    __slots__ = (
        "attempts",
        "began_ns",
        "cancelled",
        "cells",
        "copied",
        "deaths",
        "delivered",
        "given_up",
        "gpus",
        "id",
        "interface",
        "json_length",
        "lane",
        "lone_deaths",
        "mark",
        "near",
        "others",
        "parts",
        "refused_by",
        "sink",
        "size",
        "target",
        "trace",
        "wire",
    )

    def __init__(
        self, target: CallTarget, parts: Sequence[Buffer], json_length: int | None, sink: Sink, size: int, wire: int
    ) -> None:
        self.target = target
        self.parts = parts
        self.json_length = NO_JSON_LENGTH if json_length is None else json_length
        self.sink = sink
        self.size = size
        self.wire = wire
        self.lane: LaneClient | None = None
        self.id = 0
        self.attempts = 0
        self.deaths = 0
        self.delivered = False
        self.near = False
        self.gpus: frozenset[str] = NO_GPUS
        self.interface = ""
        self.lone_deaths: int
        self.refused_by: tuple[LaneClient | None, ...] = ()
        self.others: Sequence[VersionTarget] = ()
        self.cancelled = False
        self.given_up: Callable[[LaneCall], None] | None = None
        self.cells: Cells | None = None
        self.copied = False
        self.began_ns = 0
        self.trace: Trace | None = None
        self.mark: SequenceMark | None = None


class TableRow(NamedTuple):
    """A model version of a replica and its number in requests; `fault` says why it serves no more, "" while it does.

    `capacity` requests keep all its instances there busy. A `spill` gets what other replicas have no idle instance for.
    `says_ready` is what the model itself says, which only who asks for readiness needs to know.
    `sequence_idle_us` is 0 but for models that batch sequences: how long one lasts without a request. `gpus` are the
    UUIDs of those from whose memory the model takes inputs as they are. `interface` is that of its signature; what is
    `former` served as the version when it had another one, and is for those that are made for that.
    """

    number: int
    name: str
    version: int
    fault: str = ""
    capacity: int = 1
    spill: bool = False
    sequence_idle_us: int = 0
    says_ready: bool = True
    gpus: Sequence[str] = ()
    interface: str = ""
    former: bool = False


class LaneOwner(Protocol):
    """Learns what happens to a lane."""

    def lane_table(self, lane: "LaneClient", rows: list[TableRow]) -> None:
        """The replica has these models."""
        ...

    def lane_goes_away(self, lane: "LaneClient") -> None:
        """The replica drains: what is under way will be answered, nothing new should be sent."""
        ...

    def lane_shared_again(self, call: LaneCall) -> None:
        """A lone call has had its time, and runs on beside others."""
        ...

    def lane_lost(self, lane: "LaneClient", calls: list[LaneCall]) -> None:
        """The connection is gone, with these calls unanswered."""
        ...


class LaneClient(FrameProtocol):
    """One connection to one replica.

    `near` says that it goes by Unix socket, so that both ends can share memory; `leaving` that its end says nothing
    against the calls on it: the replica drains, was dismissed, or its node is gone. `withdrawn` says that it gets
    nothing new, whatever models its replica has. `welcome` says that the replica has accepted the lane, `refusal` why
    it has not. `alone` is the call that runs with nothing else in the replica, 0 when it is another lane's, None while
    there is none.
    """

    def __init__(
        self, secret: str, owner: LaneOwner, loop: asyncio.AbstractEventLoop, *, near: bool, replica_id: str = ""
    ) -> None:
        super().__init__(loop)
        self.near = near
        self.replica_id = replica_id
        self.leaving = False
        self.leaves_within_s = 0
        """What a replica that drains may take, in seconds."""
        self.withdrawn = False
        self.welcome = False
        self.refusal = ""
        self._secret = secret.encode()
        self._owner = owner
        self.last_id = 0
        """Of all calls that were sent; the next one has the number after it."""
        self.calls: dict[int, LaneCall] = {}
        self.inflight_bytes = 0
        self.open = False
        self.alone: int | None = None
        self.model_count = 0
        """How many models the replica has."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the secret."""
        super().connection_made(transport)
        self.open = True
        self.send(Kind.HELLO, 0, (self._secret,), size=len(self._secret), number=PROTOCOL_VERSION)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand back every call that was not answered."""
        super().connection_lost(exc)
        self.open = False
        calls, self.calls = list(self.calls.values()), {}
        self._owner.lane_lost(self, calls)

    def peer_silent(self) -> None:
        """Close the connection to a node that is gone; no call on it can have been the cause."""
        self.leaving = True
        super().peer_silent()

    def close(self) -> None:
        """Close the connection after what is queued has left."""
        self.leaving = True
        super().close()

    def _new_id(self) -> int:
        self.last_id = self.last_id % 0xFFFFFFFF + 1
        return self.last_id

    def has_room(self, size: int) -> bool:
        """Whether so many more bytes may be under way.

        One large request must not shut out what others ask of the replica's other models, nor they it: small ones are
        bounded by their number alone, and one that is larger than all that may be goes beside little.
        """
        if size <= SMALL_CALL_BYTES:
            return True
        if self.inflight_bytes <= _LITTLE_INFLIGHT_BYTES:
            return size <= _MAX_CALL_BYTES
        return self.inflight_bytes + size <= MAX_INFLIGHT_BYTES

    @staticmethod
    def why_no_room(size: int) -> ServingError:
        """Return why a request of so many bytes is not sent: sending it again may help, or never does."""
        if size > _MAX_CALL_BYTES:
            return InvalidArgument(f"request of {size} bytes is larger than the {_MAX_CALL_BYTES} that a replica takes")
        return QueueFull()

    def call(self, index: int, call: LaneCall, kind: Kind = Kind.REQUEST, flags: int = 0) -> None:
        """Send a request for the model at `index` of the replica's table; lone ones have another kind, and flags."""
        call.id = call_id = self._new_id()
        call.lane = self
        call.attempts += 1
        self.calls[call_id] = call
        self.inflight_bytes += call.size
        if call.copied:
            flags |= COPY
        if call.trace is not None:
            self._send_traced(index, call, call.trace, kind, flags)
            return
        self.send(
            kind,
            call_id,
            call.parts,
            size=call.size,
            flags=call.wire | flags,
            number=index,
            json_length=call.json_length,
        )

    def _send_traced(self, index: int, call: LaneCall, trace: Trace, kind: Kind, flags: int) -> None:
        trace.mark("LANE_SEND", monotonic_ns())
        trace.attributes |= {"replica": self.replica_id, "near": self.near}
        if call.attempts > 1:
            trace.attributes["attempts"] = call.attempts
            trace.attributes.pop("error", None)
        if kind is Kind.REQUEST:
            kind = Kind.TRACED_REQUEST
        else:
            flags |= TRACED
        self.send(
            kind,
            call.id,
            (identity(trace), *call.parts),
            size=IDENTITY_BYTES + call.size,
            flags=call.wire | flags,
            number=index,
            json_length=call.json_length,
        )

    def _take_trace(self, call: int, body: Buffer) -> None:
        """Keep what the replica knows of a call's trace."""
        entry = self.calls.get(call)
        if entry is not None and entry.trace is not None:
            take_records(entry.trace, body, None if self.near else wall_ahead_ns())
            entry.trace.mark("LANE_RECEIVE", monotonic_ns())

    def cancel(self, call: LaneCall) -> None:
        """Forget a call and tell the replica."""
        if self.calls.pop(call.id, None) is not None:
            self.inflight_bytes -= call.size
            self.send(Kind.CANCEL, call.id, size=0)

    def tell_cancelled(self, call: LaneCall) -> bool:
        """Tell the replica that a call is given up, and hear its answer still; returns whether it is under way here."""
        under_way = self.calls.get(call.id) is call
        if under_way:
            call.delivered = True  # no other replica would know that it is given up
            self.send(Kind.CANCEL, call.id, size=0, flags=LISTENS)
        return under_way

    def end_sequence(self, index: int, sequence_id: int | str) -> None:
        """Tell the replica that a sequence of the model at `index` of its table has started anew elsewhere."""
        body = orjson.dumps(sequence_id)
        self.send(Kind.CANCEL, 0, (body,), size=len(body), number=index)

    def _release_unread(self) -> None:
        if self.shared_offset >= 0:
            self.release(self.shared_offset)

    def _take_shared(self, body: Buffer) -> Buffer:
        """Return a body in the replica's arena as it is, or as a copy when clients that read slowly hold much of it."""
        if self.lent_bytes < _MAX_LENT_BYTES:
            return self.lend(body)
        body = bytes(body)
        self.release(self.shared_offset)
        return body

    def body_lost(self, call: int, error: ServingError) -> None:
        """Answer a call whose response cannot be had."""
        entry = self.calls.get(call)
        if entry is not None:
            self.cancel(entry)
            entry.target.fail(entry, error)

    def frame_received(self, kind: int, flags: int, number: int, call: int, json_length: int, body: Buffer) -> None:
        """Hand an answer to the sink that waits for it."""
        if kind == Kind.RESPONSE:
            if flags & FINAL:
                entry = self.calls.pop(call, None)
                if entry is None:
                    self._release_unread()
                    return
                self.inflight_bytes -= entry.size
                cells = entry.cells
                if cells is not None:
                    took_ns = monotonic_ns() - entry.began_ns
                    cells[SUM_NS] += took_ns
                    cells[FIRST_BUCKET + bisect_left(BOUNDS_NS, took_ns)] += 1
            else:
                entry = self.calls.get(call)
                if entry is None:
                    self._release_unread()
                    return
                entry.delivered = True
            if self.shared_offset >= 0:
                body = self._take_shared(body)
            entry.sink.on_response(None if json_length == NO_JSON_LENGTH else json_length, (body,), bool(flags & FINAL))
        elif kind == Kind.ERROR:
            self._take_error(flags, number, call, bytes(body).decode("utf-8", "replace"))
        elif kind == Kind.TABLE:
            self.welcome = True
            rows = [TableRow(*row) for row in orjson.loads(body)]
            self.model_count = len(rows)
            self._owner.lane_table(self, rows)
        elif kind == Kind.TRACE:
            self._take_trace(call, body)
        elif kind == Kind.ALONE:
            self.alone = call if number else None
            if not number and call in self.calls:
                self._owner.lane_shared_again(self.calls[call])
        elif kind == Kind.GOAWAY:
            self.leaving = True
            self.leaves_within_s = number
            self._owner.lane_goes_away(self)
        else:
            self.abort()

    def _take_error(self, flags: int, code: int, call: int, message: str) -> None:
        """Pass the error of a call on, or send it to another replica; that of none is why the lane is refused."""
        entry = self.calls.pop(call, None)
        if entry is None:
            if not call:
                self.refusal = message
            return
        self.inflight_bytes -= entry.size
        if flags & GONE and entry.target.send_again(entry):
            return
        if flags & UNKNOWN_SEQUENCE and entry.target.seek_sequence(entry):
            return
        if not flags & QUEUE_FULL:
            error = from_grpc_code(code, message)
            error.refused = bool(flags & REFUSED)
            entry.target.fail(entry, error)
        elif not entry.target.send_elsewhere(entry):
            entry.target.refuse(entry, QueueFull(message))
