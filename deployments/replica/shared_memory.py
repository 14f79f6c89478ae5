"""The system shared-memory regions that clients of this node have registered (Triton's shared-memory extension).

An ingress keeps the table and sends it to the replicas of its own node over their lanes; every process maps the
regions itself, so a tensor in shared memory crosses no socket.
"""

import mmap
import os
import re
import stat
from dataclasses import dataclass
from typing import Any, Final

from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound

RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
_FOLDER: Final = "/dev/shm"
_KEY: Final = re.compile(r"/*([^/\0]{1,255})")
_MAX_REGIONS: Final = 1024


@dataclass(slots=True)
class Region:
    """One registered region: `byte_size` bytes from `offset` on of the shared-memory object `key`."""

    name: str
    key: str
    offset: int
    byte_size: int
    view: memoryview


class Regions:
    """The regions known in this process; also the codecs' `SharedMemory`. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region.

        Raises:
            AlreadyExists: the name is taken.
            InvalidArgument: the key is reserved or no shared-memory name, or the range is not inside the object.
            Internal: the object cannot be opened (Triton's code for it).
        """
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        bare = _KEY.fullmatch(key)
        if bare is None or bare[1] in (".", "..") or bare[1].startswith(RESERVED_PREFIX):
            raise InvalidArgument(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
                f"prefix '{RESERVED_PREFIX}' or is not a name of shared memory"
            )
        if len(self._regions) >= _MAX_REGIONS:
            raise InvalidArgument(f"more than {_MAX_REGIONS} shared memory regions")
        self._regions[name] = Region(name, key, offset, byte_size, _map(name, key, bare[1], offset, byte_size))

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them; unknown names are no error. Requests that use one keep their mapping."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return name, key, offset and size of a region, or of all.

        Raises:
            NotFound: no such region.
        """
        if name and name not in self._regions:
            raise NotFound(f"Unable to find system shared memory region: '{name}'")
        return [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in self._regions.values()
            if not name or region.name == name
        ]

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a range of a region, writable.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        found = self._regions.get(region)
        if found is None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        if offset > found.byte_size:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{region}'")
        if offset + byte_size > found.byte_size:
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
        return found.view[offset : offset + byte_size]

    def table(self) -> list[list[Any]]:
        """Return the rows that `replace` takes."""
        return [[region.name, region.key, region.offset, region.byte_size] for region in self._regions.values()]

    def replace(self, rows: list[list[Any]]) -> None:
        """Make the regions be these; one that cannot be mapped here is left out, and requests that name it fail."""
        wanted = {row[0]: row for row in rows}
        for name, region in tuple(self._regions.items()):
            if wanted.get(name) != [region.name, region.key, region.offset, region.byte_size]:
                del self._regions[name]
        for name, key, offset, byte_size in rows:
            if name not in self._regions:
                try:
                    self.register(name, key, offset, byte_size)
                except (AlreadyExists, InvalidArgument, Internal):
                    continue


def _map(name: str, key: str, bare: str, offset: int, byte_size: int) -> memoryview:
    """Map the object and return the view of the region; the mapping lives as long as any view of it."""
    try:
        descriptor = os.open(os.path.join(_FOLDER, bare), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise Internal(f"Unable to open shared memory region: '{key}'") from None
    try:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or offset < 0
            or byte_size <= 0
            or byte_size > status.st_size
            or offset > status.st_size - byte_size
        ):
            raise InvalidArgument(f"failed to register shared memory region '{name}': invalid args")
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(descriptor, offset - start + byte_size, offset=start)
    except (OSError, ValueError):
        raise InvalidArgument(f"failed to register shared memory region '{name}': invalid args") from None
    finally:
        os.close(descriptor)
    return memoryview(mapping)[offset - start : offset - start + byte_size]
