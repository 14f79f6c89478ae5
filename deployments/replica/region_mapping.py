"""A client's region of shared memory, mapped: what lies in it can be named to another process that maps it as well."""

import mmap
import os
import stat
import time
from typing import Any, Final

from deployments.lane.lendable import Lendable, lendable_numbers, lendable_under
from deployments.replica.guarded_mapping import GuardedMapping

_FOLDER: Final = "/dev/shm"
_LONGEST_TICK_NS: Final = 20_000_000


class RegionMapping(GuardedMapping, Lendable):
    """`length` bytes of a shared-memory object from `start` on."""

    _path: str
    _identity: tuple[int, int]

    @classmethod
    def of(cls, path: str, offset: int, byte_size: int) -> "RegionMapping":
        """Map a range of the object at a path, and what comes before it in its first page.

        Raises:
            FileNotFoundError: there is no such object, or it may not be opened.
            ValueError: the range is not inside it.
            OSError: it cannot be mapped.
        """
        try:
            descriptor = _opened(path)
        except OSError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not 0 <= offset <= offset + byte_size <= status.st_size:
                raise ValueError("not inside the object")
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            mapping = cls(descriptor, offset - start + byte_size, offset=start)
        finally:
            os.close(descriptor)
        mapping.guard()
        mapping.number = next(lendable_numbers)
        mapping.start = start
        mapping._path = path
        mapping._identity = (status.st_dev, status.st_ino)
        return mapping

    def holds(self, end: int) -> bool:
        """Whether the object still has its bytes up to a position behind `start`."""
        return not self.lost and self.start + end <= self.size()

    def version(self) -> int | None:
        """Return when the object was last written to or changed its size, which stores to a mapping are not; else 0.

        That is where it has gone from its folder, or another has taken its name. None: that may happen once more in
        the same tick of the kernel's clock.
        """
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return 0
        if (status.st_dev, status.st_ino) != self._identity:
            return 0
        return status.st_mtime_ns if abs(time.time_ns() - status.st_mtime_ns) > _LONGEST_TICK_NS else None

    @property
    def is_outdated(self) -> bool:
        """Whether a GPU would fetch from memory that the object may have given up meanwhile."""
        return self.pin is not None and self.version() not in (self.pin.version, 0)

    def open_again(self) -> int:
        """Return a descriptor of the object.

        Raises:
            OSError: it has gone from its folder, or another has taken its name.
        """
        descriptor = _opened(self._path)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self._identity:
            os.close(descriptor)
            raise FileNotFoundError(self._path)
        return descriptor


def object_path(name: str) -> str:
    """Return where the shared-memory object of a name is."""
    return os.path.join(_FOLDER, name)


def region_under(buffer: Any) -> RegionMapping | None:
    """Return the region that the memory of an array or memoryview is part of, None if it is of none."""
    mapping = lendable_under(buffer)
    return mapping if type(mapping) is RegionMapping else None


def _opened(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
