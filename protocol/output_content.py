"""The outputs of one model version as they are sent, whatever the protocol: datatype, classes, shared memory."""

from collections.abc import Mapping, Sequence

import numpy as np

from protocol.bytes_tensor import encode_bytes
from protocol.classification import classify
from protocol.datatypes import BY_NAME, DataType, of_array
from protocol.errors import Internal
from protocol.infer import Array
from protocol.limits import Limits
from protocol.output_plan import OutputForm, OutputPlan
from protocol.shared_memory import RegionRange, SharedMemory, open_view
from protocol.signature import Signature

Body = bytes | memoryview
Regions = Mapping[str, memoryview]
"""Where in shared memory the client of a request wants its outputs, by name."""

_COPIED_BYTES = 1 << 16  # below, a copy is cheaper than one more part, and lets go of the array
_BYTES = BY_NAME["BYTES"]


class OutputContent:
    """Makes of an output's array what the client has asked for."""

    def __init__(
        self, signature: Signature, limits: Limits, labels: Mapping[str, Sequence[str]], shared_memory: SharedMemory
    ) -> None:
        self._signature = signature
        self._limits = limits
        self._labels = labels
        self._shared_memory = shared_memory

    def resolve(self, name: str, array: Array, form: OutputForm) -> tuple[DataType, Array]:
        """Return the datatype and the array to send: the output itself, or its classes.

        Raises:
            ServingError: there is no datatype for it, or it cannot be classified.
        """
        datatype = self._datatype(name, array)
        if not form.class_count:
            return datatype, array
        batched = self._signature.max_batch_size > 0
        labels = self._labels.get(name, ())
        return _BYTES, classify(array, datatype, form.class_count, batched, labels, self._limits)

    def store(self, name: str, content: Body, place: RegionRange, view: memoryview) -> None:
        """Put an output into shared memory, where the request has found the `view` of its place.

        Raises:
            ServingError: the place is too small, or its memory gone.
        """
        if len(content) > place.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{name}' ({place.byte_size} bytes) "
                f"should be at least {len(content)} bytes to hold the results"
            )
        target = view[: len(content)]
        if not _is_same_memory(content, target):
            target[:] = content
        self._shared_memory.check(place.region, view)  # only now: there may have been none for what was written

    def _datatype(self, name: str, array: Array) -> DataType:
        spec = self._signature.outputs.get(name)
        try:
            return of_array(array, None if spec is None else spec.datatype)
        except KeyError:
            raise Internal(f"output '{name}' of type {array.dtype} has no datatype in the protocol") from None


def open_places(shared_memory: SharedMemory, plan: OutputPlan) -> dict[str, memoryview]:
    """Return where in shared memory the client wants its outputs, by name.

    Raises:
        NotFound: no such region.
        InvalidArgument: a range is not inside its region.
    """
    return {name: open_view(shared_memory, place) for name, place in plan.regions}


def has_template(plan: OutputPlan, outputs: Mapping[str, Array]) -> bool:
    """Whether the next response with outputs of these shapes, to the same plan, differs in its id and numbers alone."""
    if any([array.dtype.kind in "OSU" or array.dtype.byteorder == ">" for array in outputs.values()]):
        return False
    return not plan.forms or outputs.keys() <= plan.forms.keys()


def tensor_bytes(array: Array, datatype: DataType) -> Body:
    """Return the wire form of an array; a view on it, not a copy, if it is large and contiguous."""
    if datatype.name == "BYTES":
        return encode_bytes(array)
    if array.dtype != datatype.numpy:
        array = array.astype(datatype.numpy)
    return number_bytes(array)


def number_bytes(array: Array) -> Body:
    """Return the bytes of an array of little-endian numbers; a view on it, not a copy, if it is large."""
    return array.tobytes() if array.nbytes <= _COPIED_BYTES else np.ascontiguousarray(array).data.cast("B")


def _is_same_memory(content: Body, target: memoryview) -> bool:
    if type(content) is bytes or not target.nbytes:
        return False
    addresses = [np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] for buffer in (content, target)]
    return bool(addresses[0] == addresses[1])
