"""The folder that Eagleray's processes of one node share: in memory, open to their user only."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deployments.lane.owned_file import made_private
from deployments.lane.parent_descriptors import keep_from_children

_ROOT: Final = Path("/dev/shm")
_LOCK: Final = "lock"
_USERS: Final = ("member-*", "guest-*")
_LOCK_TIMEOUT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.002
_LEAST_FREE_BYTES: Final = 256 << 10


class NodeFolder:
    """A folder for each node that Ray knows, as several of them can run on one machine.

    Whoever uses the folder holds a lock on a file of its own in there: a member file, for as long as it lives, or a
    guest file, for a while. Such locks end with their processes, whatever ended those and in whichever container they
    ran. The last member to leave removes the folder; the folders of nodes that left nobody alive are removed when
    another node starts.
    """

    def __init__(self, node_id: str, root: Path = _ROOT) -> None:
        """Open the folder, and make it if this is the node's first process.

        Raises:
            OSError: there is no such memory, or next to none is free, or the folder belongs to somebody else.
        """
        space = os.statvfs(root)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < _LEAST_FREE_BYTES:
            raise OSError(
                errno.ENOSPC,
                f"there are {free_bytes} bytes free in {root}, where the processes of a node share a few files: "
                f"it takes {_LEAST_FREE_BYTES} at least, and 64 MiB for large tensors (a container's --shm-size)",
            )
        self.path = made_private(_folders(root)) / node_id
        remove_abandoned(root, kept=self.path)

    @classmethod
    def at(cls, path: str) -> "NodeFolder":
        """Open a folder that another process of the node has opened as `path`."""
        folder = Path(path)
        return cls(folder.name, folder.parent.parent)

    @contextlib.contextmanager
    def locked(self, name: str = _LOCK) -> Iterator[None]:
        """Have the folder, or what a lock of another name stands for, to oneself; blocks for moments, 5 s at most.

        Raises:
            TimeoutError: somebody else has had it all that time.
            OSError: the folder cannot be made.
        """
        descriptor = _lock(self.path, name)
        try:
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep the folder, though this process is no member; blocks for moments.

        Raises:
            TimeoutError: somebody else has had the folder locked all that time.
            OSError: the folder cannot be made.
        """
        with self.locked():
            path = self.path / f"guest-{os.getpid()}-{secrets.token_hex(4)}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            hold(descriptor)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def members(self) -> list[Path]:
        """Return the member files, also of the dead."""
        return [path for path in self.path.iterdir() if path.name.startswith("member-")]

    def remove_if_abandoned(self) -> None:
        """Remove the folder when nobody who is alive uses it."""
        _remove_if_abandoned(self.path)


def remove_abandoned(root: Path = _ROOT, kept: Path | None = None) -> None:
    """Remove the folders of all nodes whose processes have ended, but for the one that is to be `kept`."""
    with contextlib.suppress(OSError):
        for path in _folders(root).iterdir():
            if path != kept:
                _remove_if_abandoned(path)


def _folders(root: Path) -> Path:
    """Return where this user's folders are."""
    return root / f"eagleray-nodes-{os.getuid()}"


def _remove_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = _lock(path, _LOCK, timeout_s=0.0)
        try:
            if not any(is_held(user) for users in _USERS for user in path.glob(users)):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def hold(descriptor: int) -> None:
    """Lock an open member file until it is closed or this process ends, whatever it has forked."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    keep_from_children(descriptor)


def is_held(path: Path) -> bool:
    """Whether the process that made a member or guest file is alive; ask only with the folder locked."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(folder: Path, name: str, timeout_s: float = _LOCK_TIMEOUT_S) -> int:
    """Return a descriptor whose closing unlocks the folder, which is made if it is not there."""
    deadline = time.monotonic() + timeout_s
    path = folder / name
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                keep_from_children(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Somebody may have removed the folder after it was opened here.
                if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                    return descriptor
            except BlockingIOError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} has been locked for {timeout_s:g} s")
        time.sleep(_LOCK_POLL_S)
