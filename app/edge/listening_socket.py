"""A TCP socket to listen on, shared by the ingresses of a node; the kernel finds out which clients have vanished."""

import ctypes
import socket
import struct
from typing import Final

# After a minute of silence, every 15 s; given up after four without an answer.
_PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}

_SO_ATTACH_FILTER: Final = 26
_SYN_ALONE: Final = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)
"""For bpf(4): look at SYN and ACK among the flags of a TCP header, and drop packets with SYN alone."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound.

    Raises:
        OSError: the port is taken, or the address is not one of this machine's; it names both.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A new ingress listens before the old one on the same node has stopped.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _probe_silent_clients(sock)
        sock.bind((host, port))
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            error.filename = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise
    return sock


def _probe_silent_clients(sock: socket.socket) -> None:
    """Have the kernel probe connections that are silent; the sockets that are accepted inherit this (tcp(7))."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def let_no_more_in(sock: socket.socket) -> None:
    """Have the kernel begin no more connections to a listening socket of TCP; those that have begun become open.

    It is as if what begins one had been lost: the client tries again after a second, by when another socket of the port
    may take it.

    Raises:
        OSError: the kernel cannot do that.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _SYN_ALONE))
    told = struct.pack("HL", len(_SYN_ALONE), ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, told)
