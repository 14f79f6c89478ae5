"""Whether a port is free, and if not, who holds it."""

import contextlib
import socket

import psutil


class PortTaken(Exception):
    """Something listens on a port already; the message says which and what."""


def require_free(host: str, port: int, purpose: str) -> None:
    """Raise PortTaken unless the port can be listened on.

    The probe does not set SO_REUSEPORT, which the ingress itself does, so that a second server is noticed.
    """
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(f"port {port} ({purpose}) is taken by {_holder(port)}") from error


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {connection.pid}, {' '.join(process.cmdline())[:120] or process.name()}"
    return "another process"
