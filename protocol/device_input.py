"""An input that stays where its client has put it, in the memory of a GPU: what is known of it from outside."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from protocol.datatypes import DataType

if TYPE_CHECKING:  # the processes of Python models may be without what it imports
    from protocol.shared_memory import RegionRange


class OpenMemory(Protocol):
    """An allocation on a GPU that this process has opened; it stays open as long as this lives."""

    @property
    def device_id(self) -> int:
        """The GPU's number in this process."""
        ...

    def address(self, offset: int) -> int:
        """Return where a position in it is in the GPU's memory."""
        ...

    def copy_out(self, offset: int, target: int, size_bytes: int) -> None:
        """Copy a range to an address in host memory. Raises ServingError."""
        ...


class DeviceMemory(Protocol):
    """An allocation of a client's on a GPU. A request that holds it may use it, registered or not."""

    def open(self) -> OpenMemory:
        """Return it as this process has it, opened by the first call. Raises ServingError."""
        ...


class DeviceRegions(Protocol):
    """The regions on GPUs that clients have registered, for a model that takes its inputs from there."""

    def memory(self, place: "RegionRange") -> DeviceMemory | None:
        """Return what a range is in, None where that is host memory.

        Raises:
            NotFound: no such region.
            InvalidArgument: the range is not inside it.
        """
        ...


class DeviceInput(NamedTuple):
    """Elements of a datatype other than BYTES, in C order from `offset` on, shaped as the model sees them."""

    memory: DeviceMemory
    offset: int
    shape: tuple[int, ...]
    datatype: DataType


def take_device_inputs(inputs: dict[str, Any]) -> dict[str, DeviceInput] | None:
    """Move those on GPUs out of a request's inputs; None where there are none."""
    found = {name: given for name, given in inputs.items() if type(given) is DeviceInput}
    for name in found:
        del inputs[name]
    return found or None
