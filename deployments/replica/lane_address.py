"""Where a replica's lane listens, and the secret that a client must say there."""

import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deployments.control.replica_directory import RunningReplica
from deployments.lane.address import ReplicaAddress
from deployments.lane.death_mark import DeathMark
from deployments.lane.owned_file import OwnedFile
from deployments.lane.parent_descriptors import keep_from_children

_MAX_PARENT_BYTES: Final = 67
"""What is below takes up to 40 bytes of a socket's path, which has 107 at most (unix(7))."""


class LaneAddress:
    """Opens the listening sockets of one replica.

    The Unix socket lies in a folder that only its user can open, beside the file that tells ingresses of this node
    whether the replica has brought its death on itself.

    Args:
        tcp_host: where it listens for other nodes; None: nowhere.
        gpus: see `ReplicaAddress`.
    """

    def __init__(self, tcp_host: str | None, gpus: Sequence[str] = ()) -> None:
        self._gpus = list(gpus)
        self.secret = secrets.token_hex(32)
        self._file = OwnedFile(_parent())
        self.death_mark = DeathMark(self._file.descriptor)
        self.unix_path = self._file.companion
        self.sockets = [_listen(socket.AF_UNIX, self.unix_path)]
        self.tcp_host, self.tcp_port = "", 0
        if tcp_host is not None:
            listener = _listen(socket.AF_INET, (tcp_host, 0))
            self.tcp_host, self.tcp_port = listener.getsockname()
            self.sockets.append(listener)

    def metadata(self) -> dict[str, Any]:
        """Return what Serve publishes to the routers."""
        tcp = [self.tcp_host, self.tcp_port]
        return {"unix": self.unix_path, "tcp": tcp, "secret": self.secret, "gpus": self._gpus}

    def remove(self) -> None:
        """Remove the files."""
        self.death_mark.remove()
        self._file.close()


def address_of(replica: RunningReplica) -> ReplicaAddress:
    """Read a replica's metadata."""
    metadata = replica.metadata
    host, port = metadata["tcp"]
    gpus = tuple(metadata.get("gpus", ()))
    return ReplicaAddress(replica.replica_id, replica.node_id, metadata["unix"], host, port, metadata["secret"], gpus)


def _parent() -> Path:
    """Return where temporary files lie, or, where paths there are too long for a socket, where shared memory does."""
    folder = tempfile.gettempdir()
    return Path(folder if len(os.fsencode(folder)) <= _MAX_PARENT_BYTES else "/dev/shm")


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind(address)
        sock.listen(512)
        sock.setblocking(False)
        keep_from_children(sock.fileno())
    except BaseException:
        sock.close()
        raise
    return sock
