"""What is traced of a request: which models have a part in it, and when each thing happens there."""

import os
from dataclasses import dataclass, field
from typing import Any, Final

TIMESTAMPS: Final = 1
TENSORS: Final = 2
CONTEXT: Final = 4
"""Models get the W3C's trace context to hand on."""

ID_BITS: Final = 52
"""So many bits of an id are random. With those that children add, a reader of JSON who has only doubles keeps it."""
CHILD_ID_BITS: Final = 45
"""So many random bits are added to an id for that of a child, 128 times at least within the 53 bits of a double."""
MAX_RECORDS: Final = 4096
"""Timestamps, tensors and traces of models, of one request, that a process keeps."""
RESERVED_RECORDS: Final = 64
"""Of these, so many are for timestamps of what others are part of: half for its start and end only."""
MAX_TEXT: Final = 1024
"""Characters of a request's id, and of an error."""
MAX_TENSOR_BYTES: Final = 1 << 20
MAX_TENSORS_BYTES: Final = 8 << 20
"""Of all tensors of one request that a process keeps."""


_ENDS: Final = frozenset(
    {"REQUEST_START", "REQUEST_END", "LANE_RECEIVE", "INFER_RESPONSE_COMPLETE"}
    | {"HTTP_SEND_START", "HTTP_SEND_END", "GRPC_SEND_START", "GRPC_SEND_END"}
)


@dataclass(slots=True)
class Room:
    """How much more a process keeps of one traced request."""

    records: int = MAX_RECORDS
    tensor_bytes: int = MAX_TENSORS_BYTES


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor of a request or a response; `data` is as on the wire, empty for one that is too large to be kept."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(eq=False, slots=True)
class Trace:
    """One model's part in a traced request: Triton's trace, and OpenTelemetry's span of a model.

    `timestamps` are monotonic nanoseconds by this node's clock, under Triton's names. A call of another model, and a
    step of an ensemble, is a child. `attributes` say what else is known, such as `error` and `batch_rows`. `top` is
    false for what is a child in this process.
    """

    flags: int
    trace_id: int
    id: int
    parent_id: int = 0
    model_name: str = ""
    version: int = -1
    request_id: str = ""
    timestamps: list[tuple[str, int]] = field(default_factory=list)
    tensors: list[TracedTensor] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    children: list["Trace"] = field(default_factory=list)
    room: Room = field(default_factory=Room)
    top: bool = True

    def mark(self, name: str, at_ns: int) -> None:
        """Note when something happened."""
        reserved = RESERVED_RECORDS
        if self.top or self.children:
            reserved = 0 if name in _ENDS else RESERVED_RECORDS // 2
        if self.room.records > reserved:
            self.room.records -= 1
            self.timestamps.append((name, at_ns))

    def at_ns(self, name: str) -> int | None:
        """Return when something happened last, None if it did not."""
        return next((at_ns for each, at_ns in reversed(self.timestamps) if each == name), None)

    def child(self, model_name: str = "", version: int = -1) -> "Trace":
        """Begin the part of another model, which this one asks.

        Its id is the greater one, as in Triton: `trace_summary.py` sorts by ids, and finds no child before its parent.
        """
        id = self.id + 1 + _random(CHILD_ID_BITS)
        child = Trace(self.flags, self.trace_id, id, self.id, model_name, version, room=self.room)
        self.adopt(child)
        return child

    def adopt(self, child: "Trace") -> None:
        """Take a child in."""
        child.top = False
        if self.room.records > RESERVED_RECORDS:
            self.room.records -= 1
            self.children.append(child)

    @property
    def tensor_room_bytes(self) -> int:
        """How many bytes the next tensor may have to be kept with its data; -1 where it is not kept at all."""
        return min(MAX_TENSOR_BYTES, self.room.tensor_bytes) if self.room.records > RESERVED_RECORDS else -1

    def add_tensor(self, tensor: TracedTensor) -> None:
        """Keep a tensor, without its data where there is no room for them."""
        room_bytes = self.tensor_room_bytes
        if room_bytes < 0:
            return
        if len(tensor.data) > room_bytes:
            tensor = TracedTensor(tensor.activity, tensor.name, tensor.datatype, tensor.shape, b"")
        self.room.records -= 1
        self.room.tensor_bytes -= len(tensor.data)
        self.tensors.append(tensor)

    def fail(self, message: str) -> None:
        """Note why the request has failed."""
        self.attributes["error"] = plain(message)

    def traceparent(self) -> str:
        """Return this part as the parent of whatever it asks for, in the W3C's form."""
        return f"00-{self.trace_id:032x}-{self.id:016x}-01"

    def log_fields(self) -> dict[str, str]:
        """Return what lines of the log say about a request that is traced."""
        return {"trace_id": f"{self.trace_id:032x}", "span_id": f"{self.id:016x}"}


def plain(text: str) -> str:
    """Return a text that can be written in UTF-8, and is not too long to be kept."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def new_trace(flags: int, trace_id: int = 0, parent_id: int = 0) -> Trace:
    """Begin a trace, of its own or as part of one that its client has begun."""
    return Trace(flags, trace_id or int.from_bytes(os.urandom(16), "big") | 1, new_id(), parent_id)


def new_id() -> int:
    """Return an id that no other trace has."""
    return _random(ID_BITS) or 1


def _random(bits: int) -> int:
    return int.from_bytes(os.urandom(8), "big") >> (64 - bits)
