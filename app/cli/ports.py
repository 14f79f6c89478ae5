"""Whether a port is free, and if not, who holds it."""

import contextlib
import errno
import socket

import psutil


class PortTaken(Exception):
    """A port or a Unix socket cannot be listened on: the message says which, and who listens there, or why else."""


def require_free(host: str, port: int, purpose: str) -> None:
    """Raise PortTaken unless the port can be listened on.

    The probe does not set SO_REUSEPORT, which the ingress itself does, so that a second server is noticed.
    """
    if port == 0:
        return
    with _socket_for(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _taken(host, port, purpose, error) from error


def reserve(host: str, port: int, purpose: str) -> socket.socket | None:
    """Return a socket that keeps the port from other servers while it is open, None for port 0.

    It does not listen, and shares the port with this user's sockets that have SO_REUSEPORT, as those of ingresses do.

    Raises:
        PortTaken: as `require_free`.
    """
    if port == 0:
        return None
    kept = _socket_for(host)
    try:
        kept.bind((host, port))
    except OSError:
        # The port may be free all the same: connections of a server that has just ended are not over (TIME_WAIT).
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            kept.bind((host, port))
        except OSError as error:
            kept.close()
            raise _taken(host, port, purpose, error) from error
        # It would share the port with another server that starts now, and comes here too.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    # Not before: it would share the port with another server.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return kept


def require_unheard(path: str) -> None:
    """Raise PortTaken where a server listens on a Unix socket: another one would take its clients away.

    One that has died has left its file, which is no obstacle.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(path) in (0, errno.EAGAIN):  # EAGAIN: its queue is full
            raise PortTaken(f"{path} (HTTP) is taken: another server listens there")


def _taken(host: str, port: int, purpose: str, error: OSError) -> PortTaken:
    if error.errno == errno.EADDRINUSE:
        return PortTaken(f"port {port} ({purpose}) is taken by {_holder(port)}")
    return PortTaken(f"port {port} ({purpose}) of {host} cannot be listened on: {error.strerror or error}")


def _socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {connection.pid}, {' '.join(process.cmdline())[:120].strip() or process.name()}"
    return "another process"
