"""What the processes of a node know of a client's region of shared memory: one row of their table."""

from typing import Any, Final, NamedTuple

_ON_THE_HOST: Final = -1


class Row(NamedTuple):
    """One registration: `serial` tells it from others of its name.

    Of system shared memory `key` names the object that the region is part of; of a GPU's it is the handle, in
    hexadecimal. The GPU has the number `device_id` where the region was registered, and the UUID `gpu`, "" where the
    driver does not tell it.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    serial: str
    device_id: int = _ON_THE_HOST
    gpu: str = ""

    @property
    def on_device(self) -> bool:
        """Whether the region is in a GPU's memory."""
        return self.device_id != _ON_THE_HOST

    def status(self) -> dict[str, Any]:
        """Return what a client is told."""
        if self.on_device:
            return {"name": self.name, "device_id": self.device_id, "byte_size": self.byte_size}
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}
