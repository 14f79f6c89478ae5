"""Turns what a model returns into what the client gets: outputs checked, converted, and safe from later writes."""

import logging
from collections import Counter
from collections.abc import Iterable
from sys import getrefcount
from typing import Final

import numpy as np

from deployments.backends.python.byte_tensor import to_bytes_elements
from deployments.backends.python.errors import to_serving_error, told
from deployments.backends.python.response import InferenceResponse
from deployments.backends.python.tensor import Tensor
from deployments.backends.row_batch import to_client_shape
from deployments.log.line_format import about_requests
from protocol.datatypes import of_array
from protocol.errors import Internal, ServingError
from protocol.infer import Array, InferRequest, InferResponse
from protocol.signature import Signature, TensorSpec

_LOG = logging.getLogger(__name__)

_COPY_BYTES = 4096
"""Views up to this size are copied without asking who else holds their memory; finding out costs as much."""

Views = list[tuple[dict[str, Array], str]]
"""Outputs that may share memory with others, as the dictionary and the name they stand in."""

_LOCAL: Final = 2
"""What `getrefcount(*(each,))` says of an object that only a name holds which the same function has bound.

From Python 3.14 on `getrefcount(each)` says less in some places, and parameters may hold nothing.
"""


class OutputReader:
    """Reads the responses of one model. Only configured and requested outputs pass.

    A model may keep the array that it returned and write to it in its next `execute`, while the response still waits
    to be sent. Triton copies every output for that reason; here an array is copied unless nobody else holds its memory.
    What a model sends while it runs is copied, whoever holds it.
    """

    def __init__(self, signature: Signature) -> None:
        self._outputs = {name: _Output(signature, spec) for name, spec in signature.outputs.items()}

    def read_sent(self, request: InferRequest, response: InferenceResponse) -> InferResponse | ServingError:
        """Return the response of a model that still runs, and may write to all that it has made it of."""
        return self.read(request, response, None)

    def read(
        self, request: InferRequest, response: InferenceResponse, views: Views | None
    ) -> InferResponse | ServingError:
        """Return the response to send, once the caller has let `settle` look at what was added to `views`.

        None of these: the model still runs, see `read_sent`.
        """
        if response._error is not None:
            return to_serving_error(response._error)
        requested = request.outputs
        configured = self._outputs
        outputs: dict[str, Array] = {}
        for tensor in response._output_tensors:
            output = configured.get(tensor._name)
            if output is None or (requested is not None and output.name not in requested):
                continue
            name = output.name  # not the tensor's, which may be of a class of its own
            try:
                array = tensor._array if type(tensor) is Tensor else tensor.host_array(output.bfloat16)
                if array.dtype is not output.dtype or output.needs_work:
                    array = output.convert(array, request)
                if array.shape != output.known_shape:
                    output.check_shape(array.shape, request)
            except ServingError as error:
                return error.without_frames()
            except Exception as error:  # of a tensor or a datatype that is the model's own
                return Internal(told(error))
            if views is None or getrefcount(*(tensor,)) > 1 + _LOCAL:  # someone besides the response
                array = array.copy()
            elif array.base is not None or getrefcount(*(array,)) > 1 + _LOCAL:  # someone besides the tensor holds it
                if array.nbytes <= _COPY_BYTES:
                    array = array.copy()
                elif not _is_given_back(getrefcount(*(array,)) - 1 - _LOCAL, array, request):
                    views.append((outputs, name))
            outputs[name] = array
        return InferResponse(outputs, response._parameters)


class _Output:
    """One configured output."""

    __slots__ = (
        "bfloat16",
        "dtype",
        "known_shape",
        "model_name",
        "name",
        "needs_work",
        "signature",
        "spec",
        "warned",
        "warned_of_datatype",
    )

    def __init__(self, signature: Signature, spec: TensorSpec) -> None:
        self.name = spec.name
        self.spec = spec
        self.signature = signature
        self.dtype = spec.datatype.numpy
        self.bfloat16 = spec.datatype.name == "BF16"
        self.needs_work = spec.reshaped or spec.datatype.name == "BYTES"
        self.known_shape: tuple[int, ...] | None = None
        self.warned = False
        self.warned_of_datatype = False

    def convert(self, array: Array, request: InferRequest) -> Array:
        """Return the array in a datatype of the protocol and in the client's shape.

        Raises:
            Internal: it has no such datatype, or an element of it is no text.
        """
        if array.dtype.kind in "OSU":
            array = _strings(array, self.spec.name, self.signature.model_name)
        elif array.dtype.newbyteorder("=") != array.dtype:
            array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype != self.dtype:
            self._check_datatype(array, request)
        if self.spec.reshaped:
            array = to_client_shape(array, self.spec, self.signature)
        return array

    def _check_datatype(self, array: Array, request: InferRequest) -> None:
        """Warn once of a datatype that is not the configured one. Triton sends those too."""
        try:
            returned = of_array(array).name
        except KeyError:
            where = f"model '{self.signature.model_name}' returned output '{self.spec.name}'"
            raise Internal(f"{where} as {array.dtype}, which is no datatype of the protocol") from None
        if not self.warned_of_datatype:
            self.warned_of_datatype = True
            _LOG.warning(
                "model '%s' returned output '%s' as %s, the model configuration specifies %s",
                self.signature.model_name,
                self.spec.name,
                returned,
                self.spec.datatype.name,
                extra=about_requests(self.signature.model_name, None, (request,)),
            )

    def check_shape(self, shape: tuple[int, ...], request: InferRequest) -> None:
        """Remember the shape; warn once of one that the configuration does not allow. Triton sends those too."""
        self.known_shape = shape
        model_shape = shape[1:] if self.signature.max_batch_size > 0 else shape
        dims = self.spec.dims
        fits = len(model_shape) == len(dims) and all(d in (-1, n) for d, n in zip(dims, model_shape, strict=True))
        if not fits and not self.warned:
            self.warned = True
            _LOG.warning(
                "model '%s' returned output '%s' with shape %s, which its dims %s%s do not describe",
                self.signature.model_name,
                self.spec.name,
                list(shape),
                list(dims),
                " behind a batch dimension" if self.signature.max_batch_size > 0 else "",
                extra=about_requests(self.signature.model_name, None, (request,)),
            )


def _is_given_back(holders: int, array: Array, request: InferRequest) -> bool:
    """Return whether the model returned an input that only its request holds, besides the tensor of one output."""
    return 0 < holders <= sum([given is array for given in request.inputs.values()])


def settle(views: Views) -> None:
    """Copy those outputs whose memory anyone but the outputs of `views` themselves can write to."""
    holders = Counter(id(outputs[name].base) for outputs, name in views)
    for outputs, name in views:
        array = outputs[name]
        base = array.base
        owned = (
            type(base) is np.ndarray
            and base.base is None
            and getrefcount(*(base,)) <= holders[id(base)] + _LOCAL
            and getrefcount(*(array,)) <= 2 + _LOCAL  # its tensor and `outputs`
        )
        if not owned:
            outputs[name] = array.copy()


def copy_kept(responses: list[object], results: Iterable[object]) -> None:
    """Copy all outputs if anyone but the list holds one of its responses, and can so write to its tensors."""
    if any([type(each) is InferenceResponse and getrefcount(*(each,)) > 1 + _LOCAL for each in responses]):
        for result in results:
            if isinstance(result, InferResponse):
                result.outputs = {name: array.copy() for name, array in result.outputs.items()}


def _strings(array: Array, output: str, model: str) -> Array:
    try:
        return to_bytes_elements(array)
    except Exception as error:  # whatever the `__str__` of an element raises, and text that UTF-8 cannot hold
        raise Internal(
            f"model '{model}' returned output '{output}' with an element that is no text: {told(error)}"
        ) from None
