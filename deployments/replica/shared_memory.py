"""The system shared-memory regions that clients of this node have registered (Triton's shared-memory extension).

All processes of the node share one table, and each maps the regions itself, so a tensor in shared memory crosses no
socket. Every use of a region looks first whether the table has changed.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deployments.replica.region_mapping import RegionMapping
from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound

RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
_KEY: Final = re.compile(r"/*([^/\0]{1,255})")
_MAX_REGIONS: Final = 1024
_LOOK_S: Final = 1.0

Rows = list[list[Any]]


class Table(Protocol):
    """Rows of name, key, offset, size and a serial of the registration, which several processes read and change."""

    @property
    def generation(self) -> int:
        """Differs whenever the rows may."""
        ...

    def rows(self) -> Rows:
        """Return the rows."""
        ...

    def change(self, edit: Callable[[Rows], Rows]) -> None:
        """Replace the rows by what `edit` makes of them, unless it raises."""
        ...


class OwnTable:
    """The rows of a process that shares them with none."""

    def __init__(self) -> None:
        self.generation = 0
        self._rows: Rows = []

    def rows(self) -> Rows:
        """Return the rows."""
        return self._rows

    def change(self, edit: Callable[[Rows], Rows]) -> None:
        """Replace the rows by what `edit` makes of them."""
        self._rows = edit(self._rows)
        self.generation += 1


@dataclass(slots=True)
class Region:
    """One registered region: `byte_size` bytes from `offset` on of a shared-memory object."""

    name: str
    offset: int
    byte_size: int
    serial: str
    mapping: RegionMapping
    view: memoryview

    def holds(self, end: int) -> bool:
        """Whether the object still has the region's bytes up to a position in it."""
        return self.mapping.holds(self.offset - self.mapping.start + end)


class Regions:
    """The regions as this process has mapped them; also the codecs' `SharedMemory`. Belongs to the loop's thread."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._generation = self._looked_at = -1
        self._rows: Rows = []
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region, and tell all processes of the node of it.

        Raises:
            AlreadyExists: the name is taken.
            InvalidArgument: the key is reserved or no shared-memory name, or the range is not inside the object.
            Internal: the object cannot be opened (Triton's code for it).
        """

        def add(rows: Rows) -> Rows:
            if any(row[0] == name for row in rows):
                raise AlreadyExists(f"shared memory region '{name}' already in manager")
            # An object of the same name may be another one the next time that it is registered.
            serial = secrets.token_hex(8)
            region = _region(name, key, offset, byte_size, serial)
            if len(rows) >= _MAX_REGIONS:
                raise InvalidArgument(f"more than {_MAX_REGIONS} shared memory regions")
            self._regions[name] = region
            return [*rows, [name, key, offset, byte_size, serial]]

        self._table.change(add)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them; unknown names are no error. Requests that use one keep their mapping."""
        self._table.change(lambda rows: [row for row in rows if name and row[0] != name])

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return name, key, offset and size of a region, or of all.

        Raises:
            NotFound: no such region.
        """
        self._follow()
        rows = [row for row in self._rows if not name or row[0] == name]
        if name and not rows:
            raise NotFound(f"Unable to find system shared memory region: '{name}'")
        return [dict(zip(("name", "key", "offset", "byte_size"), row[:4], strict=True)) for row in rows]

    @property
    def registered(self) -> bool:
        """Whether there is any region."""
        self._follow()
        return bool(self._rows)

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a range of a region, writable.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        self._follow()
        found = self._regions.get(region)
        if found is None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        if offset > found.byte_size:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{region}'")
        if offset + byte_size > found.byte_size:
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
        if not found.holds(offset + byte_size):
            raise InvalidArgument(
                f"shared memory region '{region}' is larger than its object, or there is no memory for it"
            )
        return found.view[offset : offset + byte_size]

    async def run(self) -> None:
        """Let go of what others have unregistered, for ever: what nobody asks for would be kept."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.forget()

    def forget(self) -> None:
        """Let go of what others have unregistered."""
        generation = self._table.generation
        if generation not in (self._generation, self._looked_at):
            registered = {row[-1] for row in self._table.rows()}
            self._regions = {name: region for name, region in self._regions.items() if region.serial in registered}
            self._looked_at = generation

    def _follow(self) -> None:
        """Make the regions be those of the table; one that cannot be mapped here is left out."""
        generation = self._table.generation
        if generation == self._generation:
            return
        self._rows = self._table.rows()
        self._generation = generation
        known, self._regions = self._regions, {}
        for name, key, offset, byte_size, serial in self._rows:
            region = known.get(name)
            if region is None or region.serial != serial:
                try:
                    region = _region(name, key, offset, byte_size, serial)
                except (InvalidArgument, Internal):
                    continue
            self._regions[name] = region


def _region(name: str, key: str, offset: int, byte_size: int, serial: str) -> Region:
    bare = _KEY.fullmatch(key)
    if bare is None or bare[1] in (".", "..") or bare[1].startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
            f"prefix '{RESERVED_PREFIX}' or is not a name of shared memory"
        )
    mapping = _map(name, key, bare[1], offset, byte_size)
    return Region(name, offset, byte_size, serial, mapping, memoryview(mapping)[offset - mapping.start :])


def _map(name: str, key: str, bare: str, offset: int, byte_size: int) -> RegionMapping:
    """Map the object; the mapping lives as long as any view of it."""
    invalid = InvalidArgument(f"failed to register shared memory region '{name}': invalid args")
    if offset < 0 or byte_size <= 0:
        raise invalid
    try:
        return RegionMapping.of(bare, offset, byte_size)
    except FileNotFoundError:
        raise Internal(f"Unable to open shared memory region: '{key}'") from None
    except (OSError, ValueError):
        raise invalid from None
