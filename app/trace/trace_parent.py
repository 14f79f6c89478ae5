"""The W3C's trace context, as clients send it: `traceparent: 00-<trace id>-<span id>-<flags>`."""

import re
from typing import Final, NamedTuple

HEADER: Final = b"traceparent"
_VALUE: Final = rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf](?:-[!-~]*)?[\t ]*"
_PARENT: Final = re.compile(rb"[\t ]*" + _VALUE)
_LINE: Final = re.compile(rb"\r\n(?i:traceparent):")
_SAMPLED_LINE: Final = re.compile(_LINE.pattern + rb"[\t ]*" + _VALUE + rb"(?=\r\n)")


class TraceParent(NamedTuple):
    """What a client has begun and wants to be traced."""

    trace_id: int
    span_id: int


def read_parent(value: bytes) -> TraceParent | None:
    """Return the parent that a header's value names, None for one that is malformed or is not sampled."""
    found = _PARENT.fullmatch(value)
    return None if found is None else _parent(found)


def find_parent(head: bytes) -> TraceParent | None:
    """Return the parent that the head of an HTTP/1 request names; a second such header makes both void."""
    found = _SAMPLED_LINE.search(head)
    if found is None or len(_LINE.findall(head)) > 1:
        return None
    return _parent(found)


def _parent(found: re.Match[bytes]) -> TraceParent | None:
    parent = TraceParent(int(found[1], 16), int(found[2], 16))
    return parent if parent.trace_id and parent.span_id else None
