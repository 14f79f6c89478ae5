"""A TCP socket to listen on, shared by the ingresses of a node; the kernel finds out which clients have vanished."""

import socket
from typing import Final

# After a minute of silence, every 15 s; given up after four without an answer.
_PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


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
