"""Shared memory under a lane: where a large body lies while only its place travels over the socket.

Each side of a lane on one node owns an arena that it writes and the other reads. Whoever reads a body says when it no
longer looks at it. An arena is made when the first large body is sent, and its file is unlinked as soon as the other
side has mapped it, so that nothing stays behind whichever process dies.
"""

import errno
import os
import stat
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from deployments.lane.lendable import Lendable, address_of, lendable_numbers, lendable_under
from deployments.lane.owned_file import OwnedFile, private_folder
from deployments.lane.places import ALIGNMENT, Places

ARENA_BYTES: Final = 32 << 20
_FOLDER: Final = Path("/dev/shm")
_HEAD_BYTES: Final = ALIGNMENT
"""What comes before the tensor that is made in a room, at most."""
_BODY_ALIGNMENT: Final = 64
"""Of the end of a body; see `protocol.body_memory`."""


class ArenaError(Exception):
    """An arena cannot be made or opened, or a place is not in it."""


class NoResourcesError(ArenaError):
    """There are no descriptors, or there is no memory, to open it with at present."""


class ArenaMapping(Lendable):
    """An arena, as each of its sides has it."""

    _descriptor: int

    @classmethod
    def of(cls, descriptor: int, size_bytes: int) -> "ArenaMapping":
        """Map a file.

        Raises:
            OSError, ValueError: it cannot be mapped.
        """
        mapping = cls(descriptor, size_bytes)
        mapping.number = next(lendable_numbers)
        mapping.start = 0
        mapping.address = address_of(mapping)
        mapping._descriptor = os.dup(descriptor)
        weakref.finalize(mapping, os.close, mapping._descriptor).atexit = False
        return mapping

    def open_again(self) -> int:
        """Return a descriptor of the file."""
        return os.dup(self._descriptor)


class Arena:
    """The owner's side: finds room for bodies, first fit, and takes it back.

    What a body ends with may be made here, by whatever process, in a `room` that was taken for it before; it is not
    copied then.
    """

    def __init__(self, size_bytes: int = ARENA_BYTES) -> None:
        try:
            self._file = OwnedFile(_FOLDER)
        except OSError as error:
            raise ArenaError(str(error)) from error
        self.path = self._file.path
        try:
            # Reserves the memory: writing to a sparse file on a full /dev/shm would kill the process.
            os.posix_fallocate(self._file.descriptor, 0, size_bytes)
            self._mapping = ArenaMapping.of(self._file.descriptor, size_bytes)
        except OSError as error:
            self.unlink()
            raise ArenaError(str(error)) from error
        self._view = memoryview(self._mapping)
        self._places = Places(size_bytes)
        self._rooms: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._room_bytes = 0
        self._away: set[int] = set()
        self._left: list[int] = []

    def put(self, parts: Sequence[bytes | memoryview], size: int) -> int | None:
        """Write a body of `size` bytes and return its place, None when there is no room.

        Of one that ends with what fills the beginning of a room, only what comes before that is written.
        """
        self._settle()
        offset = self._put_before(parts, size)
        if offset is None:
            before = -size % _BODY_ALIGNMENT  # for the sake of the tensor that it ends with
            start = self._places.take(before + size)
            if start is None:
                return None
            offset = start + before
        else:
            parts = parts[:-1]
        filled = offset
        for part in parts:
            end = filled + len(part)
            self._view[filled:end] = part
            filled = end
        return offset

    def room(self, size: int) -> memoryview | None:
        """Return memory for the last part of a body, None when there is none.

        It is free again when nothing looks at it, here or, once it was sent, at the other side. What is looked at here
        takes half of the arena at most: what is made slowly is not to drive out what is quick.
        """
        self._settle()
        if 2 * (self._room_bytes + size) > self._places.size_bytes:
            return None
        offset = self._places.take(_HEAD_BYTES + size)
        if offset is None:
            return None
        content = np.frombuffer(self._mapping, np.uint8, size, offset + _HEAD_BYTES)
        left = self._left
        self._rooms[offset] = weakref.ref(content, lambda _: left.append(offset)), size
        self._room_bytes += size
        return content.data

    def release(self, offset: int) -> None:
        """Take a place back; one that was not taken is an error of the peer."""
        self._settle()
        start = offset - offset % ALIGNMENT
        if start in self._away:
            self._away.remove(start)
            if start in self._rooms:
                return
        elif start in self._rooms:
            raise ArenaError(f"nothing lies at {offset}")
        if not self._places.release(start):
            raise ArenaError(f"nothing lies at {offset}")

    @property
    def taken_count(self) -> int:
        """How many bodies and rooms there are."""
        self._settle()
        return self._places.taken_count

    def unlink(self) -> None:
        """Remove the file; the mappings of both sides live on."""
        self._file.close()

    def _put_before(self, parts: Sequence[bytes | memoryview], size: int) -> int | None:
        """Write what comes before a room's content and return where it begins; None if the last part is no such."""
        last = parts[-1] if self._rooms and parts else b""
        if type(last) is bytes or lendable_under(last) is not self._mapping:
            return None
        content = address_of(last) - self._mapping.address
        start, head = content - _HEAD_BYTES, size - len(last)
        if start not in self._rooms or start in self._away or not 0 < head <= _HEAD_BYTES:
            return None
        self._away.add(start)
        return content - head

    def _settle(self) -> None:
        """Take back the rooms that nobody here looks at any more; that became so at any time, and on any thread."""
        while self._left:
            start = self._left.pop()
            self._room_bytes -= self._rooms.pop(start)[1]
            if start not in self._away:
                self._places.release(start)


def open_arena(path: str) -> memoryview:
    """Map the arena of the peer.

    Raises:
        NoResourcesError: it cannot be opened at present.
        ArenaError: it is not a file of this user in the folder for arenas.
    """
    try:
        if Path(path).parent != private_folder(_FOLDER):
            raise ArenaError("not an arena")
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _open_error(error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise ArenaError("not an arena")
        return memoryview(ArenaMapping.of(descriptor, status.st_size))
    except (OSError, ValueError) as error:
        raise _open_error(error) from error
    finally:
        os.close(descriptor)


def _open_error(error: OSError | ValueError) -> ArenaError:
    passing = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return NoResourcesError(str(error)) if passing else ArenaError(str(error))
