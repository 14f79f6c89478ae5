"""Counters in a file that is mapped into memory: others read them at any time, and they outlive their process."""

import logging
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from deployments.core.counts import Label

logger = logging.getLogger(__name__)

_SEGMENT_BYTES: Final = 1 << 16
_MAX_SEGMENTS: Final = 1 << 8
# Of a row: the lengths of its label and of its counters, both in bytes. A gap has no label; behind the last row are
# zeros.
_LENGTHS: Final = struct.Struct("<II")
_FORM: Final = _LENGTHS.pack(0, 1)
"""What a segment begins with: no row that an older version would read, and a number that is raised with the form."""
# Behind it stands a number that changes when a row takes the place of another, or of none.
_EPOCH: Final = slice(len(_FORM), 2 * len(_FORM))
_HEAD_BYTES: Final = _EPOCH.stop


class CounterFile:
    """Rows of 64-bit counters, each under a label, which one process adds, counts in and gives back.

    A row's counters are in place at once: what was counted before a `kill -9` can be read after it. Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: it exists, or there is no room.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(path, flags, 0o600)
        self._segments: list[_Segment] = []
        self._rows: dict[bytes, tuple[_Segment, int, int, int]] = {}

    def append(self, label: bytes, size_bytes: int) -> memoryview:
        """Add a row of zeros under a label that has none, and return its memory.

        Raises:
            OSError: the file is full, or the file system is.
        """
        start = _LENGTHS.size + _padded(len(label))
        segment, offset = self._place(start + size_bytes)
        segment.write(offset, label, size_bytes)
        self._rows[label] = segment, offset, start, size_bytes
        return memoryview(segment.memory)[offset + start : offset + start + size_bytes]

    def memory(self, label: bytes) -> memoryview | None:
        """Return the memory of a row's counters, None where the label has none."""
        if (row := self._rows.get(label)) is None:
            return None
        segment, offset, start, size_bytes = row
        return memoryview(segment.memory)[offset + start : offset + start + size_bytes]

    def remove(self, labels: Iterable[bytes]) -> None:
        """Give rows back in which nobody counts any more; nobody may read the file meanwhile."""
        for label in labels:
            if (row := self._rows.pop(label, None)) is not None:
                segment, offset, start, size_bytes = row
                segment.clear(offset, start + size_bytes)

    def _place(self, needed: int) -> tuple["_Segment", int]:
        for segment in self._segments:
            if (offset := segment.place(needed)) is not None:
                return segment, offset
        if len(self._segments) == _MAX_SEGMENTS or needed > _SEGMENT_BYTES - _HEAD_BYTES:
            raise OSError(f"more than {_MAX_SEGMENTS * _SEGMENT_BYTES} bytes of counters")
        # Reserves the memory: writing to a sparse file on a full file system would kill the process.
        start = len(self._segments) * _SEGMENT_BYTES
        os.posix_fallocate(self.descriptor, start, _SEGMENT_BYTES)
        segment = _Segment(mmap.mmap(self.descriptor, _SEGMENT_BYTES, offset=start))
        self._segments.append(segment)
        offset = segment.place(needed)
        assert offset is not None
        return segment, offset

    def close(self) -> None:
        """Say that this process counts no more; the file stays, and so do the rows' mappings."""
        os.close(self.descriptor)


class _Segment:
    """A part of the file in which rows lie; a gap is taken by a row of the same size, or with all others at once."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self._words = memoryview(memory).cast("Q")
        self._words[0] = int.from_bytes(_FORM, sys.byteorder)
        self._end = _HEAD_BYTES
        self._row_count = 0
        self._gaps: dict[int, list[int]] = {}

    def place(self, needed: int) -> int | None:
        """Return where a row of so many bytes may be written, None where there is no room."""
        if offsets := self._gaps.get(needed):
            return offsets[-1]
        return self._end if self._end + needed <= _SEGMENT_BYTES else None

    def write(self, offset: int, label: bytes, size_bytes: int) -> None:
        """Write a row of zeros where `place` says."""
        label_start = offset + _LENGTHS.size
        needed = _LENGTHS.size + _padded(len(label)) + size_bytes
        self.memory[label_start : label_start + len(label)] = label
        self._set_lengths(offset, len(label), size_bytes)
        self._row_count += 1
        if offset == self._end:
            self._end += needed
        else:
            self._gaps[needed].pop()
            self._words[1] += 1  # after the row: who sees the number change finds it

    def clear(self, offset: int, needed: int) -> None:
        """Make a gap of a row, and a new segment of one without rows."""
        self._words[1] += 1
        self._set_lengths(offset, 0, needed - _LENGTHS.size)
        self.memory[offset + _LENGTHS.size : offset + needed] = bytes(needed - _LENGTHS.size)
        self._gaps.setdefault(needed, []).append(offset)
        self._row_count -= 1
        if not self._row_count:
            self.memory[_HEAD_BYTES : self._end] = bytes(self._end - _HEAD_BYTES)
            self._end, self._gaps = _HEAD_BYTES, {}

    def _set_lengths(self, offset: int, label_bytes: int, counters_bytes: int) -> None:
        # Readers take a row for there as soon as it has lengths: both are written as one word.
        self._words[offset // 8] = int.from_bytes(_LENGTHS.pack(label_bytes, counters_bytes), sys.byteorder)


class CounterFileReader:
    """Reads a counter file again and again; where its rows lie is looked for once, as long as none takes another's."""

    def __init__(self, label_of: Callable[[bytes], Label | None]) -> None:
        """Have `label_of` say which row a label names, None for one that is left out."""
        self._label_of = label_of
        self._segments: list[_SegmentReader] = []

    def rows(self, descriptor: int) -> Iterator[tuple[Label, bytes]]:
        """Return the label and the memory of each row; a row that makes no sense ends its segment."""
        size_bytes = os.fstat(descriptor).st_size // _SEGMENT_BYTES * _SEGMENT_BYTES
        memory = os.pread(descriptor, size_bytes, 0)
        for number, start in enumerate(range(0, len(memory), _SEGMENT_BYTES)):
            if number == len(self._segments):
                self._segments.append(_SegmentReader(start))
            for label, row_start, end in self._segments[number].rows(memory, self._label_of):
                yield label, memory[row_start:end]


class _SegmentReader:
    """Knows where the rows of one segment lie."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._epoch = -1
        self._places: list[tuple[Label, int, int]] = []
        self._next = start

    def rows(self, memory: bytes, label_of: Callable[[bytes], Label | None]) -> list[tuple[Label, int, int]]:
        """Return the label of each row, and where its counters begin and end."""
        head = memory[self._start : self._start + _HEAD_BYTES]
        if (form := head[: _EPOCH.start]) != _FORM:
            if any(form):  # else it is being made
                _warn_of(form)
            return []
        epoch = int.from_bytes(head[_EPOCH], sys.byteorder)
        if epoch != self._epoch:
            self._epoch, self._places, self._next = epoch, [], self._start + _HEAD_BYTES
        segment_end = self._start + _SEGMENT_BYTES
        offset = self._next
        while offset + _LENGTHS.size <= segment_end:
            label_bytes, counters_bytes = _LENGTHS.unpack_from(memory, offset)
            label_start = offset + _LENGTHS.size
            start = label_start + _padded(label_bytes)
            end = start + counters_bytes
            if end == label_start or end > segment_end or counters_bytes % 8:
                break
            if label_bytes and (label := label_of(memory[label_start : label_start + label_bytes])) is not None:
                self._places.append((label, start, end))
            offset = end
        self._next = offset
        return self._places


@cache
def _warn_of(form: bytes) -> None:
    logger.warning("what a process of another version of Eagleray has counted is left out of the statistics")


def _padded(length: int) -> int:
    """Return a length rounded up, so that every counter is written and read as one word."""
    return -(-length // 8) * 8
