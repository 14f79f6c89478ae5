"""Shared memory under a lane: where a large body lies while only its place travels over the socket.

Each side of a lane on one node owns an arena that it writes and the other reads. Whoever reads a body says when it no
longer looks at it. An arena is made when the first large body is sent, and its file is unlinked as soon as the other
side has mapped it, so that nothing stays behind whichever process dies.
"""

import contextlib
import mmap
import os
import secrets
import stat
from bisect import insort
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ARENA_BYTES: Final = 32 << 20
_FOLDER: Final = Path("/dev/shm")
_ALIGNMENT: Final = 4096


class ArenaError(Exception):
    """An arena cannot be made or opened, or a place is not in it."""


class Arena:
    """The owner's side: finds room for bodies, first fit, and takes it back."""

    def __init__(self, size_bytes: int = ARENA_BYTES) -> None:
        self.path = str(_private_folder() / f"{os.getpid()}-{secrets.token_hex(8)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise ArenaError(str(error)) from error
        try:
            # Reserves the memory: writing to a sparse file on a full /dev/shm would kill the process.
            os.posix_fallocate(descriptor, 0, size_bytes)
            self._view = memoryview(mmap.mmap(descriptor, size_bytes))
        except OSError as error:
            self.unlink()
            raise ArenaError(str(error)) from error
        finally:
            os.close(descriptor)
        self._free: list[tuple[int, int]] = [(0, size_bytes)]
        self._taken: dict[int, int] = {}

    def put(self, parts: Iterable[bytes | memoryview], size: int) -> int | None:
        """Write a body of `size` bytes and return its place, None when there is no room."""
        needed = -(-size // _ALIGNMENT) * _ALIGNMENT
        index = next((index for index, (_, length) in enumerate(self._free) if length >= needed), None)
        if index is None:
            return None
        offset, length = self._free[index]
        if length == needed:
            del self._free[index]
        else:
            self._free[index] = (offset + needed, length - needed)
        self._taken[offset] = needed
        filled = offset
        for part in parts:
            end = filled + len(part)
            self._view[filled:end] = part
            filled = end
        return offset

    def release(self, offset: int) -> None:
        """Take a place back; one that was not taken is an error of the peer."""
        length = self._taken.pop(offset, None)
        if length is None:
            raise ArenaError(f"nothing lies at {offset}")
        insort(self._free, (offset, length))
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged

    @property
    def taken_count(self) -> int:
        """How many bodies lie here."""
        return len(self._taken)

    def unlink(self) -> None:
        """Remove the file; the mappings of both sides live on."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def open_arena(path: str) -> memoryview:
    """Map the arena of the peer.

    Raises:
        ArenaError: it is not a file of this user in the folder for arenas.
    """
    if Path(path).parent != _private_folder():
        raise ArenaError("not an arena")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ArenaError(str(error)) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise ArenaError("not an arena")
        return memoryview(mmap.mmap(descriptor, status.st_size))
    except (OSError, ValueError) as error:
        raise ArenaError(str(error)) from error
    finally:
        os.close(descriptor)


def _private_folder() -> Path:
    """Return the folder for arenas, which only this user can open; what dead processes left there is removed."""
    folder = _FOLDER / f"eagleray-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ArenaError(str(error)) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ArenaError(f"{folder} must be a folder that only its owner can open")
    for path in folder.iterdir():
        pid = path.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                path.unlink()
    return folder
