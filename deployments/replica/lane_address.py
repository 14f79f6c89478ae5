"""Where a replica's lane listens, and the secret that a client must say there."""

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

from deployments.control.replica_directory import RunningReplica
from deployments.lane.address import ReplicaAddress


class LaneAddress:
    """Opens the listening sockets of one replica.

    The Unix socket lies in a folder that only its user can open; what dead processes left there is removed.
    """

    def __init__(self, tcp_host: str | None) -> None:
        self.secret = secrets.token_hex(32)
        folder = _private_folder()
        self.unix_path = str(folder / f"{os.getpid()}-{secrets.token_hex(4)}")
        self.sockets = [_listen(socket.AF_UNIX, self.unix_path)]
        self.tcp_host, self.tcp_port = "", 0
        if tcp_host is not None:
            listener = _listen(socket.AF_INET, (tcp_host, 0))
            self.tcp_host, self.tcp_port = listener.getsockname()
            self.sockets.append(listener)

    def metadata(self) -> dict[str, Any]:
        """Return what Serve publishes to the routers."""
        return {"unix": self.unix_path, "tcp": [self.tcp_host, self.tcp_port], "secret": self.secret}

    def remove(self) -> None:
        """Remove the Unix socket's file."""
        with contextlib.suppress(OSError):
            os.unlink(self.unix_path)


def address_of(replica: RunningReplica) -> ReplicaAddress:
    """Read a replica's metadata."""
    metadata = replica.metadata
    host, port = metadata["tcp"]
    return ReplicaAddress(replica.replica_id, replica.node_id, metadata["unix"], host, port, metadata["secret"])


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind(address)
        sock.listen(512)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _private_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"eagleray-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder that only its owner can open")
    for path in folder.iterdir():
        pid = path.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            with contextlib.suppress(OSError):
                path.unlink()
    return folder
