"""The client's side of the HTTP codec, all binary: how a request leaves for a model in another process."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from protocol.bytes_tensor import decode_bytes
from protocol.datatypes import BY_NAME, DataType, of_array
from protocol.errors import Internal, ServingError
from protocol.header_cache import HeaderCache, may_stand_without_id, split_leading_id
from protocol.infer import SEQUENCE_END, SEQUENCE_START, Array, InferRequest, InferResponse, Parameter
from protocol.input_reader import booleans
from protocol.json_document import array_member, as_unsigned, member, parameters_of, parse, string_member
from protocol.limits import UNBOUNDED
from protocol.normalise import Shape, client_shape
from protocol.output_content import Body, number_bytes, tensor_bytes
from protocol.request_parameters import BINARY_DATA_OUTPUT, CALLERS, OWN_BINARY_DATA_OUTPUT
from protocol.signature import Signature

_TEMPLATES_KEPT = 256
_KNOWN_TYPE = "biuf"
_NON_FINITE = {
    "nan": orjson.Fragment(b"NaN"),
    "inf": orjson.Fragment(b"Infinity"),
    "-inf": orjson.Fragment(b"-Infinity"),
}
"""As the parser reads them; orjson writes null."""


class ResponseHeader:
    """The JSON part of a response: name, shape, datatype and size of each output, in order."""

    __slots__ = ("outputs", "parameters", "used")

    def __init__(
        self, outputs: list[tuple[str, Shape, DataType, int]], parameters: dict[str, Parameter] | None
    ) -> None:
        self.outputs = outputs
        self.parameters = parameters
        self.used = False


class HttpClientCodec:
    """Encodes requests to, and decodes responses of, one model. Not safe for use by several threads at once.

    Args:
        signature: of the model that is asked, whose responses have no limits; undoes `reshape` and tells BF16 from
            UINT16.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._templates: dict[tuple[Any, ...], tuple[bytes, tuple[np.dtype[Any], ...]]] = {}
        self._cache: HeaderCache[ResponseHeader] = HeaderCache(
            UNBOUNDED.header_cache_entries, UNBOUNDED.header_cache_key_bytes
        )
        self._known = self._cache.entries

    def encode_request(self, request: InferRequest) -> tuple[int, list[Body]]:
        """Return the length of the JSON part and the parts of the body. Large inputs are not copied.

        Raises:
            Internal: an input has a type that the protocol has no name for.
        """
        inputs = request.inputs
        key = (request.outputs, *inputs, *[array.shape for array in inputs.values()])
        tail, dtypes = self._templates.get(key, (b"", ()))
        contents: list[Body]
        if tail and all([array.dtype == dtype for array, dtype in zip(inputs.values(), dtypes, strict=True)]):
            contents = [number_bytes(array) for array in inputs.values()]
        else:
            tail, contents = self._describe(request, key)
        head = b'{"parameters":' + _parameters(request) + tail
        if request.id:
            head = b'{"id":' + orjson.dumps(request.id) + b"," + head[1:]
        return len(head), [head, *contents]

    def decode_response(self, body: bytes | memoryview, json_length: int | None) -> InferResponse:
        """Return the response in a body; its arrays of numbers are read-only views on the body.

        Raises:
            Internal: the body is not what `encode_request` has asked for.
        """
        if type(body) is not bytes:
            body = memoryview(body).toreadonly()
        offset = len(body) if json_length is None else json_length
        try:
            header = self._header(body, offset)
            outputs: dict[str, Array] = {}
            for name, shape, datatype, byte_size in header.outputs:
                outputs[name] = self._read(body, offset, byte_size, shape, datatype, name)
                offset += byte_size
        except ServingError as error:
            raise Internal(f"response of model '{self._signature.model_name}': {error.message}") from None
        parameters = header.parameters
        return InferResponse(outputs, None if parameters is None else parameters.copy())

    def _describe(self, request: InferRequest, key: tuple[Any, ...]) -> tuple[bytes, list[Body]]:
        described: list[dict[str, Any]] = []
        contents: list[Body] = []
        for name, array in request.inputs.items():
            datatype, shape = self._datatype(name, array)
            contents.append(tensor_bytes(array, datatype))
            parameters = {"binary_data_size": len(contents[-1])}
            described.append({"name": name, "shape": shape, "datatype": datatype.name, "parameters": parameters})
        document: dict[str, Any] = {"inputs": described}
        if request.outputs is not None:
            document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
        tail = b"," + orjson.dumps(document)[1:]
        if all([array.dtype.kind in _KNOWN_TYPE and array.dtype.isnative for array in request.inputs.values()]):
            if len(self._templates) >= _TEMPLATES_KEPT:
                self._templates.clear()
            self._templates[key] = tail, tuple([array.dtype for array in request.inputs.values()])
        return tail, contents

    def _datatype(self, name: str, array: Array) -> tuple[DataType, Shape]:
        spec = self._signature.inputs.get(name)
        shape = array.shape
        if spec is not None:
            shape = client_shape(spec, self._signature.max_batch_size > 0, shape)
            if array.dtype == spec.datatype.numpy:
                return spec.datatype, shape
        try:
            return of_array(array), shape
        except KeyError:
            raise Internal(f"input '{name}' of type {array.dtype} has no datatype in the protocol") from None

    def _header(self, body: bytes | memoryview, length: int) -> ResponseHeader:
        if not 0 < length <= len(body):
            raise Internal(f"a JSON part of {length} bytes in a body of {len(body)}")
        key = bytes(body[:length])
        split = split_leading_id(key)
        if split is not None and may_stand_without_id(split[1]):
            key = split[1]
        header = self._known.get(key)
        if header is None:
            header = self._read_header(parse(body[:length], UNBOUNDED))
            self._cache.put(key, header)
        else:
            header.used = True
        expected = sum([byte_size for _, _, _, byte_size in header.outputs])
        if len(body) - length != expected:
            raise Internal(f"expected {expected} bytes of output, got {len(body) - length}")
        return header

    def _read_header(self, document: Any) -> ResponseHeader:
        outputs: list[tuple[str, Shape, DataType, int]] = []
        for element in array_member(document, "outputs"):
            name = string_member(element, "name")
            datatype = BY_NAME.get(string_member(element, "datatype"))
            shape = tuple([as_unsigned(dim, "shape") for dim in array_member(element, "shape")])
            size_given = member(parameters_of(element), "binary_data_size")
            byte_size = as_unsigned(size_given, "binary_data_size")
            if datatype is None or (datatype.name != "BYTES" and byte_size != math.prod(shape) * datatype.byte_size):
                raise Internal(f"output '{name}' has the wrong size or datatype")
            outputs.append((name, shape, datatype, byte_size))
        return ResponseHeader(outputs, parameters_of(document) or None)

    def _read(
        self, body: bytes | memoryview, offset: int, byte_size: int, shape: Shape, datatype: DataType, name: str
    ) -> Array:
        if datatype.name == "BYTES":
            model = self._signature.model_name
            return decode_bytes(body, offset, byte_size, shape, name, model, limits=UNBOUNDED, kind="output")
        if datatype.name == "BOOL":
            return booleans(body, offset, shape)
        return np.ndarray(shape, datatype.numpy, body, offset)


def _parameters(request: InferRequest) -> bytes:
    parameters = _own(request.parameters) if request.parameters else {}
    if request.outputs is None:
        parameters[BINARY_DATA_OUTPUT] = True
    if request.sequence_id:
        parameters["sequence_id"] = request.sequence_id
        parameters["sequence_start"] = bool(request.flags & SEQUENCE_START)
        parameters["sequence_end"] = bool(request.flags & SEQUENCE_END)
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout_us:
        parameters["timeout"] = request.timeout_us
    if request.callers:
        parameters[CALLERS] = "/".join(request.callers)
    return orjson.dumps(parameters)


def _own(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return a model's own parameters as JSON carries them, with those that only gRPC has."""
    written: dict[str, Any] = dict(parameters)
    if BINARY_DATA_OUTPUT in written:
        written[OWN_BINARY_DATA_OUTPUT] = written.pop(BINARY_DATA_OUTPUT)
    for key, value in written.items():
        if type(value) is float and not math.isfinite(value):
            written[key] = _NON_FINITE[repr(value)]
    return written
