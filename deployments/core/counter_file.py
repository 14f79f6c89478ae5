"""Counters in a file that is mapped into memory: others read them at any time, and they outlive their process."""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SEGMENT_BYTES: Final = 1 << 16
_MAX_BYTES: Final = 1 << 24
# Of a row: the lengths of its label and of its counters, both in bytes.
_LENGTHS: Final = struct.Struct("<II")


class CounterFile:
    """Rows of 64-bit counters, each under a label, which one process appends and counts in.

    A row's counters are in place at once: what was counted before a `kill -9` can be read after it. Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: it exists, or there is no room.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(path, flags, 0o600)
        self._size_bytes = 0
        self._segment: mmap.mmap | None = None
        self._used_bytes = _SEGMENT_BYTES

    def append(self, label: bytes, size_bytes: int) -> memoryview:
        """Add a row of zeros and return its memory.

        Raises:
            OSError: the file is full, or the file system is.
        """
        start = _LENGTHS.size + _padded(len(label))
        needed = start + size_bytes
        if self._segment is None or self._used_bytes + needed > _SEGMENT_BYTES:
            self._segment = self._new_segment()
            self._used_bytes = 0
        offset = self._used_bytes
        self._segment[offset + _LENGTHS.size : offset + _LENGTHS.size + len(label)] = label
        # Readers take a row for there as soon as it has lengths.
        _LENGTHS.pack_into(self._segment, offset, len(label), size_bytes)
        self._used_bytes += needed
        return memoryview(self._segment)[offset + start : offset + needed]

    def _new_segment(self) -> mmap.mmap:
        if self._size_bytes >= _MAX_BYTES:
            raise OSError(f"more than {_MAX_BYTES} bytes of counters")
        # Reserves the memory: writing to a sparse file on a full file system would kill the process.
        os.posix_fallocate(self.descriptor, self._size_bytes, _SEGMENT_BYTES)
        segment = mmap.mmap(self.descriptor, _SEGMENT_BYTES, offset=self._size_bytes)
        self._size_bytes += _SEGMENT_BYTES
        return segment

    def close(self) -> None:
        """Say that this process counts no more; the file stays, and so do the rows' mappings."""
        # The mappings would hold the lock of a member file.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def read_rows(descriptor: int) -> Iterator[tuple[bytes, bytes]]:
    """Return the label and the memory of each row of an open file; a row that makes no sense ends its segment."""
    size_bytes = os.fstat(descriptor).st_size
    for base in range(0, size_bytes - _SEGMENT_BYTES + 1, _SEGMENT_BYTES):
        segment = mmap.mmap(descriptor, _SEGMENT_BYTES, offset=base, prot=mmap.PROT_READ)
        offset = 0
        while offset + _LENGTHS.size <= _SEGMENT_BYTES:
            label_bytes, counters_bytes = _LENGTHS.unpack_from(segment, offset)
            start = offset + _LENGTHS.size + _padded(label_bytes)
            end = start + counters_bytes
            if not label_bytes or end > _SEGMENT_BYTES or counters_bytes % 8:
                break
            label = segment[offset + _LENGTHS.size : offset + _LENGTHS.size + label_bytes]
            yield label, segment[start:end]
            offset = end
        segment.close()


def _padded(length: int) -> int:
    """Return a length rounded up, so that every counter is written and read as one word."""
    return -(-length // 8) * 8
