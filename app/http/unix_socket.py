"""A listening Unix socket in the file system, which only its owner can connect to."""

import contextlib
import errno
import os
import socket
import stat
from typing import Final

_MAX_BYTES: Final = 107
"""As long as the system lets the path of a Unix socket be (unix(7))."""
_BESIDE_BYTES: Final = 8
"""Of a dot and the number of a process."""


class UnixSocket:
    """One path.

    The socket is bound beside the path and then renamed onto it: a server that takes over from another on the same
    path never leaves clients without one, and a file left by a server that died is no obstacle.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0

    def check(self) -> None:
        """See that there can be a socket.

        Raises:
            OSError: the folder is not there or may not be written to, the path is too long, or it is there already and
                no socket.
        """
        longest = _MAX_BYTES - _BESIDE_BYTES
        if (length := len(os.fsencode(self._path))) > longest:
            text = f"a path of {length} bytes is too long for a Unix socket, which may have {longest} here"
            raise OSError(errno.ENAMETOOLONG, text, self._path)
        folder = os.path.dirname(os.path.abspath(self._path))
        os.stat(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(self._path, follow_symlinks=False).st_mode):
                raise FileExistsError(errno.EEXIST, "is there already, and is not a socket", self._path)

    def bind(self) -> socket.socket:
        """Return the bound socket.

        Raises:
            OSError: as of `check`.
        """
        self.check()
        beside = f"{self._path}.{os.getpid()}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            sock.bind(beside)
            # Nobody can connect before `listen`, which comes later.
            os.chmod(beside, 0o600)
            self._inode = os.stat(beside).st_ino
            os.rename(beside, self._path)
        except BaseException:
            sock.close()
            raise
        return sock

    def remove(self) -> None:
        """Remove the file, unless another server has put its own there."""
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path, follow_symlinks=False).st_ino == self._inode:
                os.unlink(self._path)
