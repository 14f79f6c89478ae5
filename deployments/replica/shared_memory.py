"""The shared-memory regions that clients of this node have registered (Triton's shared-memory extension).

All processes of the node share one table. Each maps regions of system shared memory itself, so that a tensor there
crosses no socket; those on GPUs the ingresses open, and copy, and processes of models that take their inputs there.
Every use of a region looks first whether the table has changed.
"""

import asyncio
import re
import resource
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deployments.lane.lendable import address_of
from deployments.replica.cuda_driver import NoGpuError, find_gpu
from deployments.replica.device_region import DeviceRegion, gpus_not_supported
from deployments.replica.region_mapping import RegionMapping, object_path, region_under
from deployments.replica.region_row import Row
from deployments.replica.shared_allocation import SharedAllocation
from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound, ServingError
from protocol.shared_memory import RegionRange

RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
_KEY: Final = re.compile(r"/*([^/\0]{1,255})")
_MAX_REGIONS: Final = 1024
_MAX_TEXT_BYTES: Final = 1024
"""Of a region's name, and of its key: each change of the table writes all of them."""
_LOOK_S: Final = 1.0

Rows = list[list[Any]]


class Table(Protocol):
    """Rows, each with the fields of a `Row`, which several processes read and change."""

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

    def keep(self, name: str, serial: str) -> None:
        """Have `path` find the object that has this name now, for as long as there is a row with that serial."""
        ...

    def path(self, name: str, serial: str) -> str:
        """Return where the object is that was named in the row with that serial."""
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

    def keep(self, name: str, serial: str) -> None:
        """Nobody else maps the object later."""

    def path(self, name: str, serial: str) -> str:
        """Return where the object is."""
        return object_path(name)


@dataclass(slots=True)
class Region:
    """One registered region, mapped; the mapping lives as long as any view of it."""

    row: Row
    mapping: RegionMapping
    view: memoryview

    def holds(self, end: int) -> bool:
        """Whether the object still has the region's bytes up to a position in it."""
        return self.mapping.holds(self.row.offset - self.mapping.start + end)

    def read(self, offset: int, byte_size: int) -> bytes:
        """Return a copy of a range."""
        return bytes(self.view[offset : offset + byte_size])

    def write(self, offset: int, content: bytes) -> None:
        """Copy bytes to a range."""
        self.view[offset : offset + len(content)] = content


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """A range of a region, which lives as long as this."""

    region: Region | DeviceRegion
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """Return a copy of it. Raises Internal where a GPU's memory cannot be read."""
        return self.region.read(self.offset, self.byte_size)

    def write(self, content: bytes) -> None:
        """Copy bytes that there is room for to its beginning. Raises ServingError where that cannot be."""
        self.region.write(self.offset, content)
        if not self.region.holds(self.offset + len(content)):  # only now: there may have been no memory for it
            raise _lost(self.region.row.name)


AnyRegion = Region | DeviceRegion | SharedAllocation
"""One of the last kind is opened by the models that it is lent to."""


class Regions:
    """The regions as this process has them; also the codecs' `SharedMemory`. Belongs to the loop's thread.

    Those on GPUs are opened only where `opens_devices` is set; elsewhere models may open them (`memory`).
    """

    def __init__(self, table: Table, *, opens_devices: bool = False) -> None:
        self._table = table
        self._opens_devices = opens_devices
        self._generation = self._looked_at = -1
        self._rows: list[Row] = []
        self._regions: dict[str, AnyRegion] = {}
        self._on_devices = False

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region, and tell all processes of the node of it.

        Raises:
            AlreadyExists: the name is taken.
            InvalidArgument: the name or the key is too long, the key is reserved or no shared-memory name, or the range
                is not inside the object.
            Internal: the object cannot be opened (Triton's code for it).
        """
        _check_length("name", name)
        _check_length("key", key)
        self._add(Row(name, key, offset, byte_size, secrets.token_hex(8)), self._first_mapped)

    async def register_device(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Open a region on a GPU, and tell the node's ingresses of it.

        Raises:
            AlreadyExists: the name is taken.
            InvalidArgument: the name is too long, there is no GPU here, or the handle cannot be opened on that one, or
                has less memory behind it.
        """
        _check_length("name", name)
        self._follow()
        self._check_free(name, self._rows)
        row = Row(name, handle.hex(), 0, byte_size, secrets.token_hex(8), device_id)
        region = await asyncio.to_thread(DeviceRegion.found, row)
        self._add(region.row, lambda _: region)

    def _add(self, new: Row, open_region: Callable[[Row], AnyRegion]) -> None:
        # An object of the same name may be another one the next time that it is registered, hence the serial.
        opened: list[AnyRegion] = []

        def add(rows: Rows) -> Rows:
            self._check_free(new.name, [Row(*row) for row in rows])
            if len(rows) >= (most := _most_regions()):
                raise InvalidArgument(
                    f"more than {most} shared memory regions on this node: unregister those that nobody uses any more"
                )
            opened.append(open_region(new))
            return [*rows, list(new)]

        self._table.change(add)
        self._regions[new.name] = opened[0]

    def _check_free(self, name: str, rows: Iterable[Row]) -> None:
        if any(row.name == name for row in rows):
            raise AlreadyExists(f"shared memory region '{name}' already in manager")

    def unregister(self, name: str = "", *, on_device: bool = False) -> None:
        """Forget a region of a kind, or all; unknown names are no error. Requests that use one keep their mapping."""
        self._table.change(
            lambda rows: [row for row in rows if Row(*row).on_device != on_device or (name and row[0] != name)]
        )
        self._follow()

    def status(self, name: str = "", *, on_device: bool = False) -> list[dict[str, Any]]:
        """Return what there is to tell of a region of a kind, or of all.

        Raises:
            NotFound: no such region.
        """
        self._follow()
        rows = [row for row in self._rows if not name or row.name == name]
        if name and not rows:
            kind = "cuda" if on_device else "system"
            raise NotFound(f"Unable to find {kind} shared memory region: '{name}'")
        if name and rows[0].on_device != on_device:
            kinds = ("system", "CUDA") if on_device else ("CUDA", "system")
            raise NotFound(
                f"The region named '{name}' is registered as {kinds[0]} shared memory, not {kinds[1]} shared memory"
            )
        return [row.status() for row in rows if row.on_device == on_device]

    @property
    def registered(self) -> bool:
        """Whether there is any region."""
        self._follow()
        return bool(self._rows)

    @property
    def on_devices(self) -> bool:
        """Whether this process has opened any in a GPU's memory."""
        self._follow()
        return self._on_devices

    def is_on_device(self, region: str) -> bool:
        """Whether this process has opened a region in a GPU's memory."""
        return type(self._regions.get(region)) is DeviceRegion

    def gpu_of(self, region: str) -> str:
        """Return the UUID of the GPU that a region is on, "" where there is none or it is not known."""
        found = self._regions.get(region)
        return "" if found is None else found.row.gpu

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a range of a region of system shared memory, writable.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        found = self._find(region, offset, byte_size)
        if type(found) is not Region:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        return found.view[offset : offset + byte_size]

    def check(self, region: str, view: memoryview) -> None:
        """Raise InvalidArgument where the object has the memory of a view of a region no more."""
        mapping = region_under(view) if view.nbytes else None
        if mapping is not None and not mapping.holds(address_of(view) - mapping.address + view.nbytes):
            raise _lost(region)

    def open(self, place: RegionRange) -> RegionPlace:
        """Return a range of a region of whatever kind. Raises as `view` does."""
        found = self._find(place.region, place.offset, place.byte_size)
        if isinstance(found, SharedAllocation):
            raise NotFound(f"Unable to find shared memory region: '{place.region}'")
        return RegionPlace(found, place.offset, place.byte_size)

    def memory(self, place: RegionRange) -> SharedAllocation | None:
        """Return what a range of a GPU's memory is in, None for one of the system's. Raises as `view` does."""
        found = self._find(place.region, place.offset, place.byte_size)
        return found if type(found) is SharedAllocation else None

    def _find(self, region: str, offset: int, byte_size: int) -> AnyRegion:
        self._follow()
        found = self._regions.get(region) or self._open_again(region)
        if found is None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        if not 0 <= offset <= found.row.byte_size or (offset == found.row.byte_size and byte_size):
            raise InvalidArgument(f"Invalid offset for shared memory region: '{region}'")
        if not 0 <= byte_size <= found.row.byte_size - offset:
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
        if type(found) is Region and (found.mapping.lost or found.mapping.is_outdated):
            found = self._mapped_anew(found)
        if not found.holds(offset + byte_size):
            raise _lost(region)
        return found

    async def run(self) -> None:
        """Let go of what others have unregistered, for ever: what nobody asks for would be kept."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.forget()

    def forget(self) -> None:
        """Let go of what others have unregistered."""
        generation = self._table.generation
        if generation not in (self._generation, self._looked_at):
            try:
                registered = {Row(*row).serial for row in self._table.rows()}
            except OSError:  # no more files may be open; the next look finds it
                return
            self._regions = {name: region for name, region in self._regions.items() if region.row.serial in registered}
            self._looked_at = generation

    def _follow(self) -> None:
        """Make the regions be those of the table; one that cannot be had here is left out until somebody wants it."""
        generation = self._table.generation
        if generation == self._generation:
            return
        try:
            self._rows = [Row(*row) for row in self._table.rows()]
        except OSError:  # no more files may be open; what is known holds until they may
            return
        self._generation = generation
        known, self._regions = self._regions, {}
        for row in self._rows:
            region = known.get(row.name)
            if region is not None and region.row.serial == row.serial:
                self._regions[row.name] = region
            else:
                self._open(row)
        self._note_devices()

    def _open(self, row: Row) -> AnyRegion | None:
        """Have a region here; returns None where that is not possible."""
        if row.on_device and not self._opens_devices:
            self._regions[row.name] = SharedAllocation(row)
            return self._regions[row.name]
        try:
            self._regions[row.name] = DeviceRegion(row) if row.on_device else self._mapped(row)
        except ServingError:
            return None
        return self._regions[row.name]

    def _open_again(self, name: str) -> AnyRegion | None:
        """Have a region here that could not be had before, as where no more files might be open."""
        row = next((row for row in self._rows if row.name == name), None)
        found = None if row is None else self._open(row)
        self._note_devices()
        return found

    def _note_devices(self) -> None:
        self._on_devices = any(type(region) is DeviceRegion for region in self._regions.values())

    def _first_mapped(self, row: Row) -> Region:
        self._table.keep(_object_name(row), row.serial)
        return self._mapped(row)

    def _mapped(self, row: Row) -> Region:
        """Map the object; the mapping lives as long as any view of it."""
        path = self._table.path(_object_name(row), row.serial)
        invalid = InvalidArgument(f"failed to register shared memory region '{row.name}': invalid args")
        if row.offset < 0 or row.byte_size <= 0:
            raise invalid
        try:
            mapping = RegionMapping.of(path, row.offset, row.byte_size)
        except FileNotFoundError:
            raise Internal(f"Unable to open shared memory region: '{row.key}'") from None
        except (OSError, ValueError):
            raise invalid from None
        return Region(row, mapping, memoryview(mapping)[row.offset - mapping.start :])

    def _mapped_anew(self, region: Region) -> Region:
        """Map an object that others do not only change by what they store to it, and never pin it any more.

        One that was lost may have its memory again. Raises InvalidArgument where it does not.
        """
        try:
            anew = self._mapped(region.row)
        except ServingError:
            raise _lost(region.row.name) from None
        anew.mapping.may_be_pinned = False
        self._regions[region.row.name] = anew
        return anew


def _most_regions() -> int:
    """Return how many there may be; each takes a descriptor in every process of the node."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_REGIONS if files == resource.RLIM_INFINITY else min(_MAX_REGIONS, files // 4)


async def require_gpu(name: str) -> None:
    """Raise InvalidArgument, as Triton does for a region of that name, unless there is a GPU here."""
    try:
        await asyncio.to_thread(find_gpu)
    except NoGpuError:
        raise gpus_not_supported(name) from None


def _check_length(what: str, text: str) -> None:
    if len(text) > _MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > _MAX_TEXT_BYTES:
        raise InvalidArgument(f"the {what} of a shared memory region has more than {_MAX_TEXT_BYTES} bytes")


def _lost(name: str) -> InvalidArgument:
    return InvalidArgument(f"shared memory region '{name}' is larger than its object, or there is no memory for it")


def _object_name(row: Row) -> str:
    if not row.key:
        raise Internal("Unable to open shared memory region: ''")
    bare = _KEY.fullmatch(row.key)
    if bare is None or bare[1] in (".", "..") or bare[1].startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{row.name}' with key '{row.key}' as the key contains the reserved "
            f"prefix '{RESERVED_PREFIX}' or is not a name of shared memory"
        )
    return bare[1]
