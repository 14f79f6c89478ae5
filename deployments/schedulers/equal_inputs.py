"""Which requests may share a batch as far as their inputs go."""

from collections.abc import Mapping

from protocol.device_input import DeviceInput
from protocol.infer import Array, InferRequest
from protocol.signature import Signature


class EqualInputs:
    """Compares what may differ between two requests and must not within a batch.

    That is the shape of an item of every input with a variable dimension that is not ragged and, if the model has
    optional inputs, the set of inputs that were sent.
    """

    __slots__ = ("_optional", "_variable")

    def __init__(self, variable: tuple[str, ...], optional: tuple[str, ...]) -> None:
        self._variable = variable
        self._optional = optional

    @classmethod
    def of(cls, signature: Signature) -> "EqualInputs | None":
        """Return the comparison that a model needs, None when any two of its requests fit together."""
        if not signature.max_batch_size:
            return None
        inputs = signature.inputs.values()
        variable = tuple(spec.name for spec in inputs if -1 in spec.dims and not spec.ragged)
        optional = tuple(spec.name for spec in inputs if spec.optional and spec.name not in variable)
        return cls(variable, optional) if variable or optional else None

    def key(self, request: InferRequest) -> tuple[object, ...]:
        """Return a value that is equal for requests that may share a batch."""
        inputs: Mapping[str, Array | DeviceInput] = request.inputs
        if request.devices is not None:
            inputs = {**inputs, **request.devices}
        shapes = tuple([inputs[name].shape[1:] if name in inputs else None for name in self._variable])
        if not self._optional:
            return shapes
        return (*shapes, *[name in inputs for name in self._optional])
