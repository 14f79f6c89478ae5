"""How a trace travels: its identity ahead of a request's body, and what a replica knows of it ahead of the answer.

    offset  size  before a body
         0    16  trace id
        16     8  id of the trace of the model that is asked
        24     1  flags
        25     7  nothing

    offset  size  body of a TRACE frame
         0     8  how far the sender's wall clock is ahead of its monotonic clock, in nanoseconds
         8     4  length of what follows as JSON
        12     -  the traces, as JSON: first that of the model that was asked, then its descendants
         -     -  the data of their tensors, one behind the other

The identity's integers are big-endian, as the W3C's trace context has them.
"""

import struct
import time
from typing import Any, Final

import orjson

from deployments.lane.frames import Buffer
from protocol.trace import Trace, TracedTensor

_IDENTITY: Final = struct.Struct(">16sQB7x")
IDENTITY_BYTES: Final = _IDENTITY.size
_HEAD: Final = struct.Struct("<qI")
_READ_NS: Final = 20_000
_TRIES: Final = 10


def identity(trace: Trace) -> bytes:
    """Return what goes ahead of a traced request's body."""
    return _IDENTITY.pack(trace.trace_id.to_bytes(16, "big"), trace.id, trace.flags)


def read_identity(body: Buffer) -> tuple[Trace, Buffer]:
    """Return the trace of a request, and the request's own body."""
    trace_id, id, flags = _IDENTITY.unpack_from(body)
    return Trace(flags, int.from_bytes(trace_id, "big"), id), body[IDENTITY_BYTES:]


def records(trace: Trace, wall_ahead_ns: int) -> list[bytes]:
    """Return what is known of a trace here, for whoever has asked."""
    rows: list[Any] = []
    data: list[bytes] = []
    _describe(trace, rows, data)
    text = orjson.dumps(rows)
    return [_HEAD.pack(wall_ahead_ns, len(text)), text, *data]


def _describe(trace: Trace, rows: list[Any], data: list[bytes]) -> None:
    tensors = [(each.activity, each.name, each.datatype, each.shape, len(each.data)) for each in trace.tensors]
    data.extend(each.data for each in trace.tensors)
    about = (trace.id, trace.parent_id, trace.model_name, trace.version, trace.request_id)
    rows.append((*about, trace.timestamps, trace.attributes, tensors))
    for child in trace.children:
        _describe(child, rows, data)


def take_records(trace: Trace, body: Buffer, wall_ahead_ns: int | None) -> None:
    """Add to a trace what another process knows of it.

    Args:
        trace: of the request that was sent there.
        body: of the TRACE frame.
        wall_ahead_ns: of this process; None where the other one is on this node, and so has the same clock.
    """
    view = memoryview(body)
    their_wall_ahead_ns, length = _HEAD.unpack_from(view)
    shift_ns = 0 if wall_ahead_ns is None else their_wall_ahead_ns - wall_ahead_ns
    at = _HEAD.size + length
    known = {trace.id: trace}
    for id, parent_id, name, version, request_id, timestamps, attributes, tensors in orjson.loads(
        view[_HEAD.size : at]
    ):
        part = known.get(id)
        if part is None:
            parent = known.get(parent_id, trace)
            part = known[id] = Trace(trace.flags, trace.trace_id, id, parent.id, room=trace.room)
            parent.adopt(part)
        part.model_name, part.version, part.request_id = name, version, request_id
        part.attributes |= attributes
        for each, at_ns in timestamps:
            part.mark(each, at_ns + shift_ns)
        for activity, tensor, datatype, shape, size in tensors:
            part.add_tensor(TracedTensor(activity, tensor, datatype, tuple(shape), bytes(view[at : at + size])))
            at += size


def wall_ahead_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic one, now.

    Both are read again where the thread did not run in between.
    """
    best_ns, ahead_ns = -1, 0
    for _ in range(_TRIES):
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        took_ns = time.monotonic_ns() - before_ns
        if best_ns < 0 or took_ns < best_ns:
            best_ns, ahead_ns = took_ns, wall_ns - before_ns - took_ns // 2
        if best_ns < _READ_NS:
            break
    return ahead_ns
