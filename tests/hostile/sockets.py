"""Sends and receives on a plain socket at the same time, each wait with an end."""

import select
import socket
import time
from collections.abc import Callable, Iterable

Piece = bytes | float
"""Bytes to send, or seconds in which only to listen."""

_STEP_BYTES = 1 << 16


class Wire:
    """What came back on one connection, and whether the server ended it."""

    def __init__(self) -> None:
        self.received = b""
        self.closed = False


def exchange(
    address: str, pieces: Iterable[Piece], complete: Callable[[Wire], bool], wait_s: float, linger: bool = False
) -> Wire:
    """Send the pieces, and listen until what came is complete, the server closes, or the time is over.

    Nothing more is sent once it is complete. With `linger` the end of the sending side is told after the last piece.
    """
    host, _, port = address.rpartition(":")
    wire = Wire()
    with socket.create_connection((host, int(port)), timeout=wait_s) as sock:
        sock.setblocking(False)
        deadline = time.monotonic() + wait_s
        for piece in pieces:
            if isinstance(piece, float):
                until = min(time.monotonic() + piece, deadline)
                _listen(sock, wire, until, complete)
            else:
                _send(sock, piece, wire, deadline, complete)
            if wire.closed or complete(wire):
                break
        if linger and not wire.closed:
            sock.shutdown(socket.SHUT_WR)
        _listen(sock, wire, deadline, complete)
        if not linger and not wire.closed and complete(wire):
            # A connection that is to be closed is closed right after the answer.
            _listen(sock, wire, time.monotonic() + 0.02, lambda wire: False)
    return wire


def _send(sock: socket.socket, data: bytes, wire: Wire, deadline: float, complete: Callable[[Wire], bool]) -> None:
    view = memoryview(data)
    while view and not wire.closed and time.monotonic() < deadline:
        readable, writable, _ = select.select([sock], [sock], [], max(0.0, deadline - time.monotonic()))
        if readable:
            _receive(sock, wire)
            if complete(wire):
                return
        if writable and not wire.closed:
            try:
                view = view[sock.send(view[:_STEP_BYTES]) :]
            except (BrokenPipeError, ConnectionResetError):
                _receive(sock, wire)
                wire.closed = True


def _listen(sock: socket.socket, wire: Wire, until: float, complete: Callable[[Wire], bool]) -> None:
    while not wire.closed and not complete(wire):
        left = until - time.monotonic()
        if left <= 0 or not select.select([sock], [], [], left)[0]:
            return
        _receive(sock, wire)


def _receive(sock: socket.socket, wire: Wire) -> None:
    try:
        data = sock.recv(1 << 20)
    except BlockingIOError:
        return
    except ConnectionResetError:
        data = b""
    wire.received += data
    wire.closed = not data
