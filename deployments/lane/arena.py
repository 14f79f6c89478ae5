"""Shared memory under a lane: where a large body lies while only its place travels over the socket.

Each side of a lane on one node owns an arena that it writes and the other reads. Whoever reads a body says when it no
longer looks at it. An arena is made when the first large body is sent, and its file is unlinked as soon as the other
side has mapped it, so that nothing stays behind whichever process dies.
"""

import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deployments.lane.owned_file import OwnedFile, private_folder
from deployments.lane.places import Places

ARENA_BYTES: Final = 32 << 20
_FOLDER: Final = Path("/dev/shm")


class ArenaError(Exception):
    """An arena cannot be made or opened, or a place is not in it."""


class Arena:
    """The owner's side: finds room for bodies, first fit, and takes it back."""

    def __init__(self, size_bytes: int = ARENA_BYTES) -> None:
        try:
            self._file = OwnedFile(_FOLDER)
        except OSError as error:
            raise ArenaError(str(error)) from error
        self.path = self._file.path
        try:
            # Reserves the memory: writing to a sparse file on a full /dev/shm would kill the process.
            os.posix_fallocate(self._file.descriptor, 0, size_bytes)
            self._view = memoryview(mmap.mmap(self._file.descriptor, size_bytes))
        except OSError as error:
            self.unlink()
            raise ArenaError(str(error)) from error
        self._places = Places(size_bytes)

    def put(self, parts: Iterable[bytes | memoryview], size: int) -> int | None:
        """Write a body of `size` bytes and return its place, None when there is no room."""
        offset = self._places.take(size)
        if offset is None:
            return None
        filled = offset
        for part in parts:
            end = filled + len(part)
            self._view[filled:end] = part
            filled = end
        return offset

    def release(self, offset: int) -> None:
        """Take a place back; one that was not taken is an error of the peer."""
        if not self._places.release(offset):
            raise ArenaError(f"nothing lies at {offset}")

    @property
    def taken_count(self) -> int:
        """How many bodies lie here."""
        return self._places.taken_count

    def unlink(self) -> None:
        """Remove the file; the mappings of both sides live on."""
        self._file.close()


def open_arena(path: str) -> memoryview:
    """Map the arena of the peer.

    Raises:
        ArenaError: it is not a file of this user in the folder for arenas.
    """
    try:
        if Path(path).parent != private_folder(_FOLDER):
            raise ArenaError("not an arena")
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
