"""More parameters for a v2 request that is on its way as bytes."""

from collections.abc import Sequence
from typing import Final

import orjson

from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument
from protocol.request_parameters import FORWARDED

_SPACE: Final = b" \t\r\n"
_TAIL_BYTES: Final = 256
_MAX_TAIL_BYTES: Final = 1 << 16


def add_parameters(
    body: Buffer, json_length: int | None, parameters: dict[str, str]
) -> tuple[Sequence[Buffer], int | None]:
    """Return a v2 request's body, in parts, and the length of its JSON with more parameters in it.

    Nothing is parsed: they become the last member of the object, whatever its size. What does not end as an object
    does is returned as it is, and whoever decodes it will say so; so is a raw request (`json_length` 0), which has no
    place for parameters.

    Raises:
        InvalidArgument: the JSON ends in very much white space.
    """
    end = len(body) if json_length is None else json_length
    if not 0 < end <= len(body):
        return (body,), json_length
    start, before, last = _ending(body, end)
    if last != b"}":
        return (body,), json_length
    comma = b"" if before == b"{" else b","
    member = b'%b"%b":%b}' % (comma, FORWARDED.encode(), orjson.dumps(parameters))
    view = memoryview(body)
    parts: list[Buffer] = [view[:start], member, view[end:]] if end < len(body) else [view[:start], member]
    return parts, None if json_length is None else start + len(member)


def _ending(body: Buffer, end: int) -> tuple[int, bytes, bytes]:
    """Return where the last character is that is no white space, the one before it, and it.

    Raises:
        InvalidArgument: white space takes so much of the end that a search for them would hold up others.
    """
    for size in (_TAIL_BYTES, _MAX_TAIL_BYTES):
        first = max(0, end - size)
        text = bytes(body[first:end]).rstrip(_SPACE)
        before = text[:-1].rstrip(_SPACE)
        if before or not first:
            return first + len(text) - 1, before[-1:], text[-1:]
    raise InvalidArgument(f"the request's JSON ends in more than {_MAX_TAIL_BYTES} bytes of white space")
