"""Entries under keys of 32 bytes in a file that the processes of a node map into memory; the oldest go for new ones.

    offset  content
         0  words of 64 bits: bytes ever written to the ring, bytes of it that have memory
        64  the index: buckets of 8 slots, a slot is a part of a key and where in the ring its entry began, plus 1
     after  the ring: entries, each a header (key, where it begins, length, CRC-32) and its content

Where an entry begins is counted over all turns of the ring, so a reader sees whether it has been written over.
"""

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_HEAD_BYTES: Final = 64
_WRITTEN: Final = 0
_BACKED: Final = 1
_SLOTS: Final = 8
_BUCKET_BYTES: Final = 16 * _SLOTS
# A bucket for so many bytes: a slot for each half KiB, which is 3 % of the file.
_BYTES_PER_BUCKET: Final = 4096
_ENTRY: Final = struct.Struct("=32sQQQ8x")
_GRAIN_BYTES: Final = 64
_BACKED_AT_ONCE_BYTES: Final = 1 << 20

Buffer = bytes | memoryview


class ResponseRing:
    """A ring of at most `size_bytes` with its index; belongs to one thread of each process that has it open.

    Readers take no lock: they copy an entry, and look then whether it was written over meanwhile. A writer announces
    what it will write over, writes, and puts the entry into the index last; so one that is killed at any moment leaves
    nothing that could be taken for an entry. Its lock ends with it, also where a child that it forked lives on (fcntl,
    not flock). Nobody waits for the lock: what finds it taken is not kept. With flock each process says that it uses
    the file; see `remove_if_unused`.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Open the file, and make it if this is the first process.

        Raises:
            OSError: there is no room for the index.
        """
        self._buckets = max(1, size_bytes // _BYTES_PER_BUCKET)
        self._start = _HEAD_BYTES + self._buckets * _BUCKET_BYTES
        self._capacity = max(0, size_bytes - self._start) // _GRAIN_BYTES * _GRAIN_BYTES
        self.path = path
        self._descriptor = _opened(path)
        try:
            # Memory is reserved before it is written: to write where there is none left would kill the process.
            os.posix_fallocate(self._descriptor, 0, self._start)
            if os.fstat(self._descriptor).st_size < self._start + self._capacity:
                os.ftruncate(self._descriptor, self._start + self._capacity)
            self._map = mmap.mmap(self._descriptor, self._start + self._capacity)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._words = memoryview(self._map)[: self._start].cast("Q")
        self._warned = False

    def find(self, key: bytes) -> bytes | None:
        """Return a copy of the content under a key, None when there is none."""
        first, part = self._place_in_index(key)
        words = self._words
        for slot in range(first, first + 2 * _SLOTS, 2):
            if words[slot] == part and words[slot + 1]:
                begins = words[slot + 1] - 1
                content = self._read(key, begins)
                if content is not None:
                    if words[_WRITTEN] - begins > self._capacity * 3 // 4:
                        self._put(key, (content,), len(content))  # what is in use does not go with what is as old
                    return content
        return None

    def keep(self, key: bytes, parts: Sequence[Buffer]) -> None:
        """Keep a content, if it fits, is not there yet, and no other process is writing."""
        if self.find(key) is None:
            self._put(key, parts, sum(map(len, parts)))

    def close(self) -> None:
        """Use the ring no longer; others do."""
        self._words.release()
        self._map.close()
        os.close(self._descriptor)

    def _place_in_index(self, key: bytes) -> tuple[int, int]:
        """Return the first word of a key's bucket, and the part of the key that its slot has."""
        bucket = int.from_bytes(key[:8], "little") % self._buckets
        return (_HEAD_BYTES + bucket * _BUCKET_BYTES) // 8, int.from_bytes(key[8:16], "little")

    def _read(self, key: bytes, begins: int) -> bytes | None:
        if begins % _GRAIN_BYTES or not self._holds(begins):
            return None
        place = self._start + begins % self._capacity
        name, begun, length, checksum = _ENTRY.unpack_from(self._map, place)
        content = place + _ENTRY.size
        if name != key or begun != begins or length > len(self._map) - content:
            return None
        copy = self._map[content : content + length]
        return copy if self._holds(begins) and zlib.crc32(copy) == checksum else None

    def _holds(self, begins: int) -> bool:
        """Whether what began there is in the ring, and nobody has announced to write over it."""
        return 0 <= self._words[_WRITTEN] - begins <= self._capacity

    def _put(self, key: bytes, parts: Sequence[Buffer], length: int) -> None:
        needed = -(-(_ENTRY.size + length) // _GRAIN_BYTES) * _GRAIN_BYTES
        if needed > self._capacity:
            return
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            begins = self._room(needed)
            if begins is not None:
                self._write(key, parts, length, begins)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _room(self, needed: int) -> int | None:
        """Announce that so many bytes are written over; return where they begin, None when there is no memory."""
        begins = self._words[_WRITTEN]
        used = begins % self._capacity
        if used + needed > self._capacity or not self._back(used + needed):
            begins += self._capacity - used
            if not self._back(needed):
                return None
        self._words[_WRITTEN] = begins + needed
        return begins

    def _back(self, end: int) -> bool:
        """Reserve memory for the ring up to `end`; without any, the ring turns earlier."""
        backed = self._words[_BACKED]
        if end <= backed:
            return True
        to = min(self._capacity, end + _BACKED_AT_ONCE_BYTES)
        try:
            os.posix_fallocate(self._descriptor, self._start + backed, to - backed)
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning("the response cache has %d bytes and gets no more: %s", backed, error)
            return False
        self._words[_BACKED] = to
        return True

    def _write(self, key: bytes, parts: Sequence[Buffer], length: int, begins: int) -> None:
        place = self._start + begins % self._capacity
        at = place + _ENTRY.size
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
            self._map[at : at + len(part)] = part
            at += len(part)
        _ENTRY.pack_into(self._map, place, key, begins, length, checksum)
        first, key_part = self._place_in_index(key)
        words = self._words
        slots = range(first, first + 2 * _SLOTS, 2)
        slot = next((slot for slot in slots if words[slot] == key_part), None)
        if slot is None:
            slot = min(slots, key=lambda each: words[each + 1])  # an empty one, or that of the oldest
        words[slot + 1] = 0
        words[slot] = key_part
        words[slot + 1] = begins + 1


def _opened(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for who removes it, a moment
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def remove_if_unused(path: Path) -> None:
    """Remove a ring's file that no process has open."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)
