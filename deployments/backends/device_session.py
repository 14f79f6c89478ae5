"""A session of ONNX Runtime that also takes inputs which are in the memory of its GPU already."""

from collections.abc import Sequence
from typing import Any

from deployments.backends.device_inputs import DeviceRows
from deployments.backends.sized_sessions import Feed
from deployments.lane.lendable import address_of, lendable_under
from deployments.replica.guarded_mapping import GuardedMapping
from protocol.infer import Array


class DeviceSession:
    """A session on a device that ONNX Runtime calls `kind`."""

    def __init__(self, session: Any, device_id: int, kind: str = "cuda") -> None:
        self.session = session
        self._device_id = device_id
        self._kind = kind

    def run(self, names: Sequence[str], feed: Feed, options: Any) -> list[Array]:
        """Return the outputs `names`, in the memory of the CPU; on several threads at once."""
        feed = {  # kept until the session has run
            name: tensor if isinstance(tensor, DeviceRows) else readable(tensor) for name, tensor in feed.items()
        }
        if not any([isinstance(tensor, DeviceRows) for tensor in feed.values()]):
            outputs: list[Array] = self.session.run(names, feed, options)
            return outputs
        binding = self.session.io_binding()
        for name, tensor in feed.items():
            if isinstance(tensor, DeviceRows):
                binding.bind_input(name, self._kind, self._device_id, tensor.dtype, tensor.shape, tensor.address)
            else:  # `bind_cpu_input` knows none that stand for initializers
                binding.bind_input(name, "cpu", 0, tensor.dtype, tensor.shape, address_of(tensor))
        for name in names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding, options)
        return [value.numpy() for value in binding.get_outputs()]


def readable(tensor: Array) -> Array:
    """Return an input that CUDA's driver can read without a fault, in order: a client may make its region smaller.

    Who handles that needs the interpreter, which another thread may have while it waits for the driver.
    """
    if isinstance(lendable_under(tensor), GuardedMapping):
        return tensor.copy()
    return tensor if tensor.flags.c_contiguous else tensor.copy()
