"""Response heads and error bodies."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

import orjson

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """Return the first line of a response."""
    return b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"Unknown"))


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]], keep_alive: bool) -> bytes:
    """Return a response's head, the empty line included."""
    lines = [status_line(status)]
    lines += [b"%s: %s\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def error_body(message: str) -> bytes:
    """Return Triton's JSON for an error, under 1 KiB."""
    if len(message) > 900:
        message = message[:900] + "..."
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def error_response(status: int, message: str, keep_alive: bool, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return a whole error response; `extra` headers come last."""
    body = error_body(message)
    headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)), *extra]
    if status == 503:
        headers.append((b"Retry-After", b"1"))
    return response_head(status, headers, keep_alive) + body
