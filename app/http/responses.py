"""Response heads and error bodies."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

import orjson

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
RETRY_AFTER: Final = (b"Retry-After", b"1")
_MAX_ERROR_BYTES: Final = 1024


def status_line(status: int) -> bytes:
    """Return the first line of a response."""
    return b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"Unknown"))


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]], end: bytes) -> bytes:
    """Return a response's head; `end` is that of `HeadEnds` which suits the connection."""
    lines = [status_line(status)]
    lines += [b"%s: %s\r\n" % header for header in headers]
    lines.append(end)
    return b"".join(lines)


def error_body(message: str) -> bytes:
    """Return Triton's JSON for an error, at most 1 KiB."""
    body = _error_json(message)
    while len(body) > _MAX_ERROR_BYTES:
        # In proportion, as a character may take up to twelve bytes.
        message = message[: len(message) * (_MAX_ERROR_BYTES - 64) // len(body)]
        body = _error_json(message + "...")
    return body


def message_of(body: bytes) -> str:
    """Return the message of an error body."""
    try:
        return str(orjson.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")


def _error_json(message: str) -> bytes:
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def error_response(status: int, message: str, end: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return a whole error response with `extra` headers."""
    body = error_body(message)
    headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)), *extra]
    if status == 503:
        headers.append(RETRY_AFTER)
    return response_head(status, headers, end) + body
