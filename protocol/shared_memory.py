"""Shared-memory regions as the codecs see them: a name, a range, and whoever knows where that is."""

from dataclasses import dataclass
from typing import Any, Protocol

from protocol.errors import InvalidArgument, NotFound
from protocol.json_document import as_string, as_unsigned


@dataclass(frozen=True, slots=True)
class RegionRange:
    """A range of a registered region, as an input or output names it."""

    region: str
    offset: int
    byte_size: int


class SharedMemory(Protocol):
    """The regions that clients have registered."""

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return that range of the region, writable, in bytes.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        ...

    def check(self, region: str, view: memoryview) -> None:
        """Raise InvalidArgument where the memory of a view of the region is gone."""
        ...


class NoSharedMemory:
    """Where client shared memory is not offered, no region is ever found."""

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Raise `NotFound`."""
        raise NotFound(f"Unable to find shared memory region: '{region}'")

    def check(self, region: str, view: memoryview) -> None:
        """Raise `NotFound`."""
        raise NotFound(f"Unable to find shared memory region: '{region}'")


def read_region(parameters: dict[str, Any]) -> RegionRange | None:
    """Return the range that the parameters of an input or output name, None if they name none."""
    if "shared_memory_region" not in parameters:
        return None
    return RegionRange(
        as_string(parameters["shared_memory_region"], "shared_memory_region"),
        as_unsigned(parameters.get("shared_memory_offset", 0), "shared_memory_offset"),
        as_unsigned(parameters.get("shared_memory_byte_size", 0), "shared_memory_byte_size"),
    )


def open_view(shared_memory: SharedMemory, place: RegionRange) -> memoryview:
    """Return the bytes of a range, whatever the item type of the owner's view.

    Raises:
        NotFound: no such region.
        InvalidArgument: the range is not inside it.
    """
    view = shared_memory.view(place.region, place.offset, place.byte_size)
    if view.nbytes != place.byte_size:
        raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{place.region}'")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
