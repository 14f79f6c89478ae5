"""Whether a node's ingresses listen already: a lock in the node's folder that those share who do."""

import fcntl
import os
from typing import Final

from deployments.replica.node_folder import NodeFolder

_NAME: Final = "listening"


class ListeningMark:
    """It ends with the process, whatever ends that."""

    def __init__(self, folder: NodeFolder) -> None:
        """Open the node's file.

        Raises:
            OSError: it cannot be made.
        """
        self._descriptor = os.open(folder.path / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def others_listen(self) -> bool:
        """Whether another ingress listens; one that has `set` its mark asks `another_listens`."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def another_listens(self) -> bool:
        """Whether another ingress listens beside this one, which does; for a moment its mark is not there."""
        found = self.others_listen()
        self.set()
        return found

    def set(self) -> None:
        """Say that this ingress listens; blocks for the moment in which another one asks."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def clear(self) -> None:
        """Say that it stops."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
