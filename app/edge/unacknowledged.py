"""What the kernel still keeps of what was written to a socket, since the peer has not acknowledged it."""

import asyncio
import fcntl
import sys
import termios


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes wait in the kernel (SIOCOUTQ of tcp(7)), 0 where it does not say."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    count = bytearray(4)
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)
