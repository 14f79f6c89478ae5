"""Which parts of a piece of shared memory are taken: first fit, in pages."""

from bisect import insort

ALIGNMENT = 4096


class Places:
    """The places in `size_bytes` bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size_bytes)] if size_bytes else []
        self._taken: dict[int, int] = {}
        self.size_bytes = size_bytes

    def take(self, size_bytes: int) -> int | None:
        """Return the offset of a place of that size, None when there is no room."""
        needed = -(-size_bytes // ALIGNMENT) * ALIGNMENT
        index = next((index for index, (_, length) in enumerate(self._free) if length >= needed), None)
        if index is None:
            return None
        offset, length = self._free[index]
        if length == needed:
            del self._free[index]
        else:
            self._free[index] = (offset + needed, length - needed)
        self._taken[offset] = needed
        return offset

    @property
    def end_bytes(self) -> int:
        """Where the last place ends that is taken."""
        if self._free:
            offset, length = self._free[-1]
            if offset + length == self.size_bytes:
                return offset
        return self.size_bytes

    def take_end(self, offset: int) -> None:
        """Take all that is from a page on as one place; nothing there is taken."""
        first, length = self._free.pop()
        if first < offset:
            self._free.append((first, offset - first))
        self._taken[offset] = first + length - offset

    def release(self, offset: int) -> bool:
        """Take a place back; returns False for one that was not taken."""
        length = self._taken.pop(offset, None)
        if length is None:
            return False
        self._give_back(offset, length)
        return True

    def grow(self, size_bytes: int) -> None:
        """Have room up to a larger size."""
        self._give_back(self.size_bytes, size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    @property
    def taken_count(self) -> int:
        """How many places are taken."""
        return len(self._taken)

    def _give_back(self, offset: int, length: int) -> None:
        insort(self._free, (offset, length))
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged
