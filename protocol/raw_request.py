"""Requests without any JSON: the whole body is the one input of the model."""

import math

from protocol.errors import InvalidArgument
from protocol.limits import Limits
from protocol.normalise import Shape, check_byte_size, effective_priority, model_shape, request_prefix
from protocol.output_plan import ALL_BINARY
from protocol.request_header import InputSource, Part, RequestHeader
from protocol.request_parameters import RequestParameters
from protocol.signature import Signature, TensorSpec

_PREFIX = request_prefix("")  # nothing in such a request gives it an id


class RawRequestReader:
    """Deduces the header that a raw request to one model does not have."""

    def __init__(self, signature: Signature, limits: Limits) -> None:
        self._signature = signature
        self._limits = limits

    def read(self, byte_size: int) -> RequestHeader:
        """Return the header of a request whose body has that many bytes. All outputs are sent in binary.

        Raises:
            InvalidArgument: with Triton's text, if the model does not allow such requests or the size does not fit.
        """
        signature = self._signature
        if len(signature.inputs) != 1:
            raise InvalidArgument(
                f"{_PREFIX}Raw request must only have 1 input (found 1) to be deduced but got "
                f"{len(signature.inputs)} inputs in '{signature.model_name}' model configuration"
            )
        spec = next(iter(signature.inputs.values()))
        if byte_size > self._limits.http_max_input_size_bytes:
            raise InvalidArgument(
                f"Raw input has a byte_size ({byte_size} bytes) that exceeds the maximum allowed value of "
                f"{self._limits.http_max_input_size_bytes} bytes. Use --http-max-input-size to increase the limit."
            )
        part = self._part(spec, self._shape(spec, byte_size), byte_size)
        parameters = RequestParameters()
        return RequestHeader("", (part,), 1, parameters, effective_priority(signature, 0), ALL_BINARY)

    def _shape(self, spec: TensorSpec, byte_size: int) -> Shape:
        batch = (1,) if self._signature.max_batch_size > 0 else ()
        if spec.datatype.name == "BYTES":
            if spec.dims != (1,):
                raise InvalidArgument(
                    f"{_PREFIX}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
                )
            return (*batch, 1)
        if spec.dims.count(-1) > 1:
            raise InvalidArgument(
                f"{_PREFIX}The shape of the raw input '{spec.name}' can not be deduced because there are "
                "more than one variable-sized dimension"
            )
        known = math.prod(dim for dim in spec.dims if dim != -1)
        deduced = byte_size // (known * spec.datatype.byte_size)
        return (*batch, *[deduced if dim == -1 else dim for dim in spec.dims])

    def _part(self, spec: TensorSpec, shape: Shape, byte_size: int) -> Part:
        batched = self._signature.max_batch_size > 0
        kind = spec.datatype.numpy.kind
        if kind != "O":
            check_byte_size(self._signature, spec, shape, byte_size)
        source = InputSource(spec, False, None) if kind in "Ob" else None
        if source is not None and kind == "O":
            source.whole = True
        return spec.name, model_shape(spec, batched, shape), spec.datatype.numpy, byte_size, source
