"""The HTTP codec of one loaded model version: bytes of a request become arrays, arrays become bytes of a response."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protocol.bytes_tensor import has_many_strings, strings_length
from protocol.device_input import DeviceRegions, take_device_inputs
from protocol.errors import InvalidArgument, ServingError
from protocol.header_cache import HeaderCache, may_stand_without_id, split_leading_id
from protocol.infer import Array, InferRequest, InferResponse, Reply
from protocol.input_reader import InputReader
from protocol.json_document import parse
from protocol.json_values import MAX_CUT_BYTES, cut_values, parse_arrays
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.normalise import Shape
from protocol.output_content import Body, open_places
from protocol.output_plan import ALL_BINARY, OutputPlan
from protocol.raw_request import RawRequestReader
from protocol.request_header import InputSource, RequestHeader, RequestHeaderReader
from protocol.response_writer import ResponseWriter
from protocol.shared_memory import NoSharedMemory, SharedMemory
from protocol.short_error import shortened
from protocol.signature import Signature

_INT32 = 2**31
_LONG_JSON_ELEMENTS = 1 << 16
_LONG_JSON_BYTES = 1 << 22


def parse_json_length(value: bytes | str) -> int:
    """Return the number in an `Inference-Header-Content-Length` header.

    Raises:
        InvalidArgument: it is not an integer of 32 bits; that it is within the body `decode` checks.
    """
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\s*", text, re.ASCII) is None:
        raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {text[:64]}")
    number = int(text)
    if not -_INT32 <= number < _INT32:
        raise InvalidArgument(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ {-_INT32}, {_INT32 - 1} ], got: {text[:64]}"
        )
    return number


class HttpInferCodec:
    """Decodes requests to, and encodes responses of, one model version; made once, when it is loaded.

    Not safe for use by several threads at once. Headers are parsed once, apart from values among them, and then
    recognised by their bytes; so are response headers by plan and shapes.

    Args:
        signature: of the model.
        model_version: as the response shall name it.
        limits: on requests.
        labels: class labels by output name, for the classification extension.
        shared_memory: the regions of clients; None offers none.
        device_regions: those on GPUs, for a model that takes inputs from there as they are.
    """

    def __init__(
        self,
        signature: Signature,
        model_version: str,
        limits: Limits = DEFAULT_LIMITS,
        labels: Mapping[str, Sequence[str]] | None = None,
        shared_memory: SharedMemory | None = None,
        device_regions: DeviceRegions | None = None,
    ) -> None:
        self._limits = limits
        self._shared_memory = shared_memory or NoSharedMemory()
        self._reader = RequestHeaderReader(signature, limits)
        self._raw = RawRequestReader(signature, limits)
        self._inputs = InputReader(signature, limits, self._shared_memory, device_regions)
        self._on_devices = device_regions is not None
        self._writer = ResponseWriter(signature, model_version, limits, labels or {}, self._shared_memory)
        self._cache: HeaderCache[RequestHeader] = HeaderCache(
            limits.header_cache_entries, limits.header_cache_key_bytes
        )
        self._known = self._cache.entries
        self._takes_strings = signature.takes_strings
        self._sends_strings = signature.sends_strings
        self._key_bytes = limits.header_cache_key_bytes
        self._cut_bytes = min(MAX_CUT_BYTES, limits.json_max_elements, limits.http_max_input_size_bytes)

    def decode(
        self, body: bytes | memoryview, json_length: int | None, reply: Reply, context: Any = None
    ) -> InferRequest:
        """Return the request in a body; its arrays of numbers are views on the body.

        Args:
            body: JSON, followed by binary tensors. The model may write to one that is not read-only.
            json_length: value of `Inference-Header-Content-Length`; None: all of the body is JSON; 0: none of it is.
            reply: for the request.
            context: for the request.

        Raises:
            ServingError: with Triton's text; what Triton calls a parse error is `InvalidArgument` here.
        """
        if type(body) is not bytes:
            body = memoryview(body)
        length = len(body) if json_length is None else json_length
        header = None
        values: Sequence[Any] = ()
        request_id = ""
        if 0 < length <= self._key_bytes:
            header, request_id = self._recognise(bytes(body[:length]))
        if (header is None or header.inline_count) and 0 < length <= self._cut_bytes:
            header, values, request_id = self._recognise_around_values(bytes(body[:length]))
        if header is None or len(body) - length != header.binary_bytes:
            header, values = self._decode_header(body, length, json_length)
            request_id = ""
        header.used = True
        inputs: dict[str, Any] = {}
        offset = length
        faulty: ServingError | None = None
        inline = iter(values)
        for name, shape, dtype, byte_size, source in header.parts:
            if source is None:
                inputs[name] = np.ndarray(shape, dtype, body, offset)
            elif source.inline:
                inputs[name] = self._read_inline(next(inline), shape, source, header.id or request_id)
            else:
                try:
                    inputs[name] = self._inputs.read(body, offset, byte_size, shape, source, header.id or request_id)
                except ServingError as error:
                    faulty = shortened(error)  # Triton looks at binary strings from the last input to the first
            offset += byte_size
        if faulty is not None:
            try:
                raise faulty
            finally:
                del faulty  # which has this frame, and with it the body
        plan = header.plan
        places = open_places(self._shared_memory, plan) if plan.regions else None
        parameters = header.parameters
        return InferRequest(
            inputs,
            header.rows,
            reply,
            id=header.id or request_id,
            outputs=header.outputs,
            parameters=None if parameters is None else parameters.copy(),
            priority=header.priority,
            timeout_us=header.timeout_us,
            sequence_id=header.sequence_id,
            flags=header.flags,
            context=context,
            encoding=plan,
            callers=header.callers,
            places=places,
            devices=take_device_inputs(inputs) if self._on_devices else None,
        )

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Body]]:
        """Return the length of the JSON part (None: all of it is JSON) and the parts of a response's body.

        A request that this codec did not decode gets all outputs in binary. Large outputs are not copied: the model
        must not write to their arrays again.

        Raises:
            ServingError: an output cannot be sent as the client wants it.
        """
        return self._writer.write(request.id, request.encoding or ALL_BINARY, response, request.regions)

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        """Whether `encode` would keep a loop from its work, as much JSON and many strings do."""
        plan = request.encoding
        if plan is not None and not plan.binary_only:
            texts = _as_json(plan, response)
            if sum([array.size for array in texts]) > _LONG_JSON_ELEMENTS:
                return True
            if self._sends_strings and strings_length(texts) > _LONG_JSON_BYTES:
                return True
        return self._sends_strings and has_many_strings(response.outputs)

    def reads_long(self, body: bytes | memoryview) -> bool:
        """Whether `decode` may keep a loop from its work, for a body that is large."""
        return self._takes_strings

    def _recognise(self, text: bytes) -> tuple[RequestHeader | None, str]:
        """Return the header that is known by its text, and the id that this one starts with."""
        header = self._known.get(text)
        if header is None and (split := split_leading_id(text)) is not None:
            header = self._known.get(split[1])
            if header is not None:
                return header, split[0]
        return header, ""

    def _recognise_around_values(self, text: bytes) -> tuple[RequestHeader | None, Sequence[Any], str]:
        """Do the same for a request with values in the JSON, which come second."""
        rest, arrays = cut_values(text)
        if not arrays:
            return None, (), ""
        header, request_id = self._recognise(rest)
        if header is None or header.inline_count != len(arrays) or (values := parse_arrays(arrays)) is None:
            return None, (), ""
        return header, values, request_id

    def _decode_header(
        self, body: bytes | memoryview, length: int, json_length: int | None
    ) -> tuple[RequestHeader, Sequence[Any]]:
        try:
            if json_length is not None and not 0 <= json_length <= len(body):
                raise InvalidArgument(f"inference header size should be in range (0, {len(body)}), got: {json_length}")
            if json_length == 0:
                return self._raw.read(len(body)), ()
            text = body[:length]
            header, values = self._reader.read(parse(text, self._limits), len(body) - length)
        except ServingError as error:
            raise shortened(error) from None
        if not header.inline_count:
            if length <= self._key_bytes:
                self._remember(bytes(text), header)
        elif length <= self._cut_bytes and all([type(value) is list for value in values]):
            rest, arrays = cut_values(bytes(text))
            if len(arrays) == header.inline_count and b"\\" not in rest:
                self._remember(rest, header)
        return header, values

    def _remember(self, key: bytes, header: RequestHeader) -> None:
        """Keep a header by its bytes; one that starts with an id without it, as the next may differ in that alone."""
        split = split_leading_id(key)
        if split is None:
            self._cache.put(key, header)
        elif may_stand_without_id(split[1]):
            self._cache.put(split[1], header.without_id())

    def _read_inline(self, data: Any, shape: Shape, source: InputSource, request_id: str) -> Array:
        try:
            return self._inputs.from_json(data, shape, source.spec, request_id)
        except ServingError as error:
            raise shortened(error) from None


def _as_json(plan: OutputPlan, response: InferResponse) -> list[Array]:
    """Return the outputs of a response that are made JSON of, or classes."""
    forms = {name: plan.form(name) for name in response.outputs}
    return [response.outputs[name] for name, form in forms.items() if form is not None and form.makes_text]
