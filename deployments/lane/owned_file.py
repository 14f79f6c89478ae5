"""Files in a folder that only their user can open, each held by a living process.

The owner keeps a lock on its file (flock(2)), which ends with the process however it dies. A process id would not do:
in containers that share a folder, each has its own numbers.
"""

import contextlib
import fcntl
import os
import secrets
import stat
from pathlib import Path
from typing import Final

_COMPANION: Final = ".at"


class OwnedFile:
    """A new file in `<parent>/eagleray-<uid>`, locked as long as this object is open; what the dead left is removed.

    Beside it there may lie something that cannot be locked, such as a socket: at `companion`, which goes when it goes.
    """

    def __init__(self, parent: Path) -> None:
        """Create the file.

        Raises:
            OSError: the folder cannot be made, or others can open it.
        """
        folder = private_folder(parent)
        _remove_what_the_dead_left(folder)
        self.path = ""
        while not self.path:
            path = str(folder / secrets.token_hex(8))
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            if os.fstat(self.descriptor).st_nlink:  # else another process came between the two and took it for dead
                self.path = path
            else:
                os.close(self.descriptor)
        self.companion = _companion(self.path)

    def close(self) -> None:
        """Remove the file and its companion and give up the lock; the second call does nothing."""
        if self.descriptor < 0:
            return
        _unlink(self.path)
        os.close(self.descriptor)
        self.descriptor = -1


def private_folder(parent: Path) -> Path:
    """Return the user's folder in `parent`, made when it is not there.

    Raises:
        OSError: it cannot be made, or others can open it.
    """
    return made_private(parent / f"eagleray-{os.getuid()}")


def made_private(folder: Path) -> Path:
    """Return a folder that only this user can open, made when it is not there.

    Raises:
        OSError: it cannot be made, or others can open it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder that only its owner can open")
    return folder


def file_beside(companion: str) -> str:
    """Return the path of the owned file that a companion belongs to."""
    return companion.removesuffix(_COMPANION)


def _companion(path: str) -> str:
    return path + _COMPANION


def _remove_what_the_dead_left(folder: Path) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _unlink(path)
    except BlockingIOError:
        pass  # its owner lives
    finally:
        os.close(descriptor)


def _unlink(path: str) -> None:
    for each in (_companion(path), path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(each)
