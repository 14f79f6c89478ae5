"""A reset in place of the end of a connection: what the peer has got is not all."""

import asyncio
import contextlib
import socket
import struct
from typing import Final

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""`struct linger`: on, for no time."""


def reset_at_close(transport: asyncio.BaseTransport) -> None:
    """Have the kernel reset a TCP connection once it is closed, and drop what it has yet to send (socket(7))."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # the peer has reset it already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
