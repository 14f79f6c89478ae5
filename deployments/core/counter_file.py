"""Counters in a file that is mapped into memory: others read them at any time, and they outlive their process."""

import fcntl
import logging
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from deployments.core.counts import Label

logger = logging.getLogger(__name__)

_SEGMENT_BYTES: Final = 1 << 16
_MAX_BYTES: Final = 1 << 24
# Of a row: the lengths of its label and of its counters, both in bytes.
_LENGTHS: Final = struct.Struct("<II")
_HEAD: Final = _LENGTHS.pack(0, 1)
"""What a segment begins with: no row that an older version would read, and a number that is raised with the form."""
_NOTHING: Final = bytes(len(_HEAD))


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
            self._used_bytes = len(_HEAD)
        offset = self._used_bytes
        self._segment[offset + _LENGTHS.size : offset + _LENGTHS.size + len(label)] = label
        # Readers take a row for there as soon as it has lengths: both are written as one word.
        _write_word(self._segment, offset, _LENGTHS.pack(len(label), size_bytes))
        self._used_bytes += needed
        return memoryview(self._segment)[offset + start : offset + needed]

    def _new_segment(self) -> mmap.mmap:
        if self._size_bytes >= _MAX_BYTES:
            raise OSError(f"more than {_MAX_BYTES} bytes of counters")
        # Reserves the memory: writing to a sparse file on a full file system would kill the process.
        os.posix_fallocate(self.descriptor, self._size_bytes, _SEGMENT_BYTES)
        segment = mmap.mmap(self.descriptor, _SEGMENT_BYTES, offset=self._size_bytes)
        _write_word(segment, 0, _HEAD)
        self._size_bytes += _SEGMENT_BYTES
        return segment

    def close(self) -> None:
        """Say that this process counts no more; the file stays, and so do the rows' mappings."""
        # The mappings would hold the lock of a member file.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


class CounterFileReader:
    """Reads a counter file again and again; where its rows lie is looked for once, as rows are only ever appended."""

    def __init__(self, label_of: Callable[[bytes], Label | None]) -> None:
        """Have `label_of` say which row a label names, None for one that is left out."""
        self._label_of = label_of
        self._places: list[tuple[Label, int, int]] = []
        self._next = 0

    def rows(self, descriptor: int) -> Iterator[tuple[Label, bytes]]:
        """Return the label and the memory of each row; a row that makes no sense ends its segment."""
        # What lies in front of the last segment is complete before that one is there.
        size_bytes = os.fstat(descriptor).st_size // _SEGMENT_BYTES * _SEGMENT_BYTES
        memory = os.pread(descriptor, size_bytes, 0)
        self._find_more(memory)
        for label, start, end in self._places:
            yield label, memory[start:end]

    def _find_more(self, memory: bytes) -> None:
        offset = self._next
        while offset < len(memory):
            segment_end = (offset // _SEGMENT_BYTES + 1) * _SEGMENT_BYTES
            if offset % _SEGMENT_BYTES == 0:
                head = memory[offset : offset + len(_HEAD)]
                if head == _NOTHING and segment_end == len(memory):  # it is being made
                    break
                if head not in (_HEAD, _NOTHING):
                    _warn_of(head)
                offset = offset + len(_HEAD) if head == _HEAD else segment_end
                continue
            label_bytes, counters_bytes = (
                _LENGTHS.unpack_from(memory, offset) if offset + _LENGTHS.size <= segment_end else (0, 0)
            )
            label_start = offset + _LENGTHS.size
            start = label_start + _padded(label_bytes)
            end = start + counters_bytes
            if label_bytes and end <= segment_end and counters_bytes % 8 == 0:
                label = self._label_of(memory[label_start : label_start + label_bytes])
                if label is not None:
                    self._places.append((label, start, end))
                offset = end
            elif segment_end < len(memory):
                offset = segment_end
            else:
                break
        self._next = offset


def _write_word(segment: mmap.mmap, offset: int, content: bytes) -> None:
    memoryview(segment)[offset : offset + len(content)].cast("Q")[0] = int.from_bytes(content, sys.byteorder)


@cache
def _warn_of(head: bytes) -> None:
    logger.warning("what a process of another version of Eagleray has counted is left out of the statistics")


def _padded(length: int) -> int:
    """Return a length rounded up, so that every counter is written and read as one word."""
    return -(-length // 8) * 8
