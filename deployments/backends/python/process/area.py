"""Shared memory between a replica and the process of a Python model: one writes, the other reads.

Both have the file (memfd_create(2), which needs no room in `/dev/shm` and leaves nothing behind) from the start; the
writer makes it longer when it needs to. A place is free again when the last array over it is gone on the reader's side,
which tells the writer with its next message, and with one of its own where much is free. So it is with arrays that the
reader is told of where they are, in other memory that both have mapped; these have numbers below zero.
"""

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterable
from functools import partial
from mmap import mmap
from typing import IO

import numpy as np

from deployments.lane.places import Places
from protocol.errors import ServingError, unexpected
from protocol.infer import Array

FIRST_BYTES = 4 << 20
MAX_BYTES = 8 << 30
TOLD_BYTES = 1 << 20
"""When so much is free, the writer is told though there is nothing else to say."""
SPARE_BYTES = 128 << 20
"""How much of the memory that was written to an area keeps, though nothing is in it; so much more, and that goes."""
_ALIGNMENT = 64
# Of <fcntl.h>: FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
_PUNCH_HOLE = 3


class AreaFullError(Exception):
    """There is no room, and there may not be more."""

    def told(self) -> ServingError:
        """Return what a client hears: `Unavailable` where it is the machine that has no more."""
        return unexpected(self.__cause__, str(self))


class _Area:
    """A file, which belongs to it, and what is mapped of that."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory: mmap | None = None

    def close(self) -> list[mmap]:
        """Close the file and return what is mapped, for `unmap`; it stays mapped while there are arrays over it."""
        memory, self._memory = self._memory, None
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        return [] if memory is None else [memory]


class OwnArea(_Area):
    """The writer's side."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._places = Places(0)
        self._written_bytes = 0
        """Behind how many bytes the file has no memory."""
        self._emptying: tuple[threading.Thread, int] | None = None
        self._held: dict[int, Array] = {}
        self.last_held = 0
        """The number of the array that was held last."""
        self.held_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return self._places.size_bytes

    def take(self, size_bytes: int) -> int:
        """Return the offset of a place.

        Raises:
            AreaFullError: what is in the area and this are more than 8 GiB, or there is no memory.
        """
        self._emptied()
        while (offset := self._places.take(size_bytes)) is None:
            try:
                self._grow(size_bytes)
            except AreaFullError:
                if not self._emptied(wait=True):
                    raise
        self._written_bytes = max(self._written_bytes, offset + size_bytes)
        return offset

    def write(self, offset: int, arrays: Iterable[tuple[int, Array]]) -> None:
        """Copy arrays to offsets within a place."""
        for within, array in arrays:
            target = np.ndarray(array.shape, array.dtype, self._memory, offset + within)
            target[...] = array

    def write_bytes(self, data: bytes) -> int:
        """Copy bytes to a place of their own and return its offset."""
        offset = self.take(len(data))
        assert self._memory is not None
        self._memory[offset : offset + len(data)] = data
        return offset

    def hold(self, array: Array) -> int:
        """Keep an array that the reader looks at where it is, and return its number."""
        self.last_held -= 1
        self._held[self.last_held] = array
        self.held_bytes += array.nbytes
        return self.last_held

    def release(self, freed: Iterable[int]) -> None:
        """Take back the places, and let go of the arrays, that the reader no longer looks at."""
        for offset in freed:
            if offset < 0:
                self._forget(offset)
            else:
                self._places.release(offset)
        if self._written_bytes >= 2 * SPARE_BYTES and self._emptying is None:
            self._empty()

    def let_go(self, since: int = 0) -> None:
        """Let go of the arrays that were held after one number: the reader is dead, or has not heard of them."""
        for number in [number for number in self._held if number < since]:
            self._forget(number)

    def close(self) -> list[mmap]:
        """Let go of the arrays that are held, too; there are no places any more, nor will there be."""
        self.let_go()
        self._places = Places(0)
        return super().close()

    def _forget(self, number: int) -> None:
        array = self._held.pop(number, None)
        if array is not None:
            self.held_bytes -= array.nbytes

    def _empty(self) -> None:
        """Give back the memory behind the last place, if there is much; until that is done, nobody gets a place there.

        It is done beside the loop, since the kernel takes half a second for some gigabytes.
        """
        first = max(self._places.end_bytes, SPARE_BYTES)
        size_bytes = self._written_bytes - first
        if size_bytes < SPARE_BYTES:
            return
        with contextlib.suppress(OSError, RuntimeError):  # there are no more descriptors, or threads: another time
            file = open(os.dup(self._descriptor), "rb")  # noqa: SIM115 - the thread closes it
            thread = threading.Thread(target=_punch, args=(file, first, size_bytes), name="empty", daemon=True)
            thread.start()
            self._places.take_end(first)
            self._written_bytes = first
            self._emptying = thread, first

    def _emptied(self, *, wait: bool = False) -> bool:
        """Have places again where memory was given back; returns whether there are more."""
        if self._emptying is None:
            return False
        thread, first = self._emptying
        if wait:
            thread.join()
        if thread.is_alive():
            return False
        self._emptying = None
        return self._places.release(first)

    def _grow(self, needed_bytes: int) -> None:
        size_bytes = max(FIRST_BYTES, 2 * self.size_bytes)
        while size_bytes - self.size_bytes < needed_bytes + 4096:
            size_bytes *= 2
        if size_bytes > MAX_BYTES:
            raise AreaFullError(f"no room for {needed_bytes} bytes of tensors in shared memory")
        try:
            os.ftruncate(self._descriptor, size_bytes)
            self._memory = mmap(self._descriptor, size_bytes)
        except OSError as error:
            raise AreaFullError(f"no shared memory for tensors: {error.strerror}") from error
        self._places.grow(size_bytes)


class PeerArea(_Area):
    """The reader's side."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._size_bytes = 0
        self._lent: dict[int, weakref.ref[Array]] = {}
        self._freed: list[int] = []
        self.freed_bytes = 0
        """How much became free since `take_freed` was called last, about: threads count it beside each other."""

    def read(self, offset: int, size_bytes: int, area_bytes: int) -> Array:
        """Return the bytes of a place, which is free when neither they nor an array over them are looked at."""
        if area_bytes > self._size_bytes:
            assert self._descriptor >= 0  # -1 is memory of nobody's
            self._memory = mmap(self._descriptor, area_bytes)
            self._size_bytes = area_bytes
        assert self._memory is not None
        return self._watched(offset, np.frombuffer(self._memory, np.uint8, size_bytes, offset))

    def watch(self, number: int, memory: memoryview) -> Array:
        """Return the bytes of an array that lies elsewhere, and that its writer holds under a number as long."""
        return self._watched(number, np.frombuffer(memory, np.uint8))

    def take_freed(self) -> tuple[int, ...]:
        """Return the places and numbers that became free since this was called last."""
        if not self._freed:
            return ()
        self.freed_bytes = 0
        freed = tuple(self._freed)
        del self._freed[: len(freed)]  # another thread may have added one meanwhile
        return freed

    def keep_freed(self, freed: tuple[int, ...]) -> None:
        """Have `take_freed` return these again: the writer has not heard of them."""
        self._freed += freed

    def _watched(self, number: int, content: Array) -> Array:
        self._lent[number] = weakref.ref(content, partial(self._free, number, content.nbytes))
        return content

    def _free(self, number: int, size_bytes: int, _: object) -> None:
        del self._lent[number]
        self._freed.append(number)
        self.freed_bytes += size_bytes


def unmap(memory: list[mmap]) -> None:
    """Let go of memory beside the loop, and empty the list: the kernel takes half a second to free some gigabytes."""
    if not memory:
        return
    with contextlib.suppress(RuntimeError):  # the system has no more threads: it goes with the list
        threading.Thread(target=memory.clear, name="unmap", daemon=True).start()


def _punch(file: IO[bytes], first: int, size_bytes: int) -> None:
    """Free the memory of a part of a file, which reads as zeros from then on; see fallocate(2)."""
    with file, contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).fallocate(file.fileno(), _PUNCH_HOLE, ctypes.c_long(first), ctypes.c_long(size_bytes))


def aligned(size_bytes: int) -> int:
    """Return how much of a place a tensor takes."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
