"""The gRPC codec of one loaded model version: a serialised ModelInferRequest becomes arrays, and arrays a response."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protocol.bytes_tensor import has_many_strings
from protocol.device_input import DeviceRegions, take_device_inputs
from protocol.errors import ServingError, Unsupported
from protocol.grpc_request import (
    RAW_FIELD,
    Content,
    GrpcEncoding,
    GrpcHeader,
    GrpcRequestReader,
    SplitMessage,
    has_typed_contents,
)
from protocol.grpc_response_writer import GrpcResponseWriter
from protocol.grpc_typed import TypedMessages
from protocol.header_cache import HeaderCache
from protocol.infer import InferRequest, InferResponse, Reply
from protocol.input_reader import InputReader
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.output_content import Body, OutputContent, open_places
from protocol.output_plan import ALL_BINARY
from protocol.protobuf_wire import LENGTH_DELIMITED, field_head, read_varint
from protocol.shared_memory import NoSharedMemory, SharedMemory
from protocol.short_error import shortened
from protocol.signature import Signature

_ID = 3 << 3 | LENGTH_DELIMITED
_RAW = RAW_FIELD << 3 | LENGTH_DELIMITED
_DEFAULT = GrpcEncoding(ALL_BINARY)
# Typed floats are copied when they are read for the first time; so many take a millisecond.
_COPIED_BYTES = 4 << 20

Inputs = dict[str, Any]
"""Arrays, and `DeviceInput`s where the model takes these."""
Recognised = tuple[GrpcHeader, Inputs, str]


class GrpcInferCodec:
    """Decodes requests to, and encodes responses of, one model version; made once, when it is loaded.

    Not safe for use by several threads at once. Messages are parsed once and then recognised by their bytes, apart from
    the id in front and the raw contents behind; so are responses by plan and shapes.

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
        self.signature = signature
        self._limits = limits
        self._shared_memory = shared_memory or NoSharedMemory()
        self._reader = GrpcRequestReader(signature, limits)
        self._inputs = InputReader(signature, limits, self._shared_memory, device_regions)
        self._on_devices = device_regions is not None
        content = OutputContent(signature, limits, labels or {}, self._shared_memory)
        self._writer = GrpcResponseWriter(signature, model_version, content)
        self._cache: HeaderCache[GrpcHeader] = HeaderCache(limits.header_cache_entries, limits.header_cache_key_bytes)
        self._known = self._cache.entries
        self._typed = TypedMessages(limits.header_cache_entries, limits.header_cache_key_bytes)
        self._typed_by_size = self._typed.by_size
        name, version = signature.model_name.encode(), model_version.encode()
        self._model = field_head(1, len(name)) + name
        self._version = field_head(2, len(version)) + version
        self._head_bytes = len(self._model) + len(self._version) + 130 + limits.header_cache_key_bytes
        self._max_key_bytes = limits.header_cache_key_bytes
        self._key_guess = 0
        self._takes_strings = signature.takes_strings
        self._takes_floats_only = all([spec.datatype.numpy.kind == "f" for spec in signature.inputs.values()])
        self._sends_strings = signature.sends_strings

    def decode(
        self, body: bytes | memoryview, json_length: int | None, reply: Reply, context: Any = None
    ) -> InferRequest:
        """Return the request of a ModelInfer call; its arrays of numbers are views on the body.

        Args:
            body: a serialised ModelInferRequest, with raw or typed contents. The model may write to one that is not
                read-only.
            json_length: no meaning here.
            reply: for the request.
            context: for the request.

        Raises:
            ServingError: with Triton's text. A decoupled model answers streams only.
        """
        if self.signature.decoupled:
            raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
        return self.decode_any(body, reply, context)

    def decode_any(self, body: bytes | memoryview, reply: Reply, context: Any = None) -> InferRequest:
        """Return the request of a call of either kind; like `decode`, but decoupled models do not matter."""
        if type(body) is not bytes:
            body = memoryview(body)
        try:
            header, inputs, request_id = self._recognise(body) or self._read(body)
            plan = header.plan
            places = open_places(self._shared_memory, plan) if plan.regions else None
        except ServingError as error:
            raise shortened(error) from None
        parameters = header.parameters
        return InferRequest(
            inputs,
            header.rows,
            reply,
            id=request_id,
            outputs=header.outputs,
            parameters=None if parameters is None else parameters.copy(),
            priority=header.priority,
            timeout_us=header.timeout_us,
            sequence_id=header.sequence_id,
            flags=header.flags,
            context=context,
            encoding=header.encoding,
            places=places,
            devices=take_device_inputs(inputs) if self._on_devices else None,
        )

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        """Whether `encode` would keep a loop from its work, as many strings do; numbers are copied as they are."""
        return self._sends_strings and has_many_strings(response.outputs)

    def reads_long(self, body: bytes | memoryview) -> bool:
        """Whether `decode` may keep a loop from its work, for a body that is large."""
        if self._takes_floats_only and len(body) <= _COPIED_BYTES:
            return False
        return self._takes_strings or has_typed_contents(body)

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[None, list[Body]]:
        """Return None and the parts of a serialised ModelInferResponse.

        Large outputs are not copied: the model must not write to their arrays again.

        Raises:
            ServingError: an output cannot be sent as the client wants it.
        """
        return None, self._writer.write(request.id, (request.encoding or _DEFAULT).plan, response, request.regions)

    def _recognise(self, body: bytes | memoryview) -> Recognised | None:
        """Return what is known of a message like earlier ones, with the inputs of this one; None if there is none."""
        head = body if type(body) is bytes else bytes(body[: self._head_bytes])
        if not head.startswith(self._model):
            return None
        request_id = ""
        start = len(self._model)
        try:
            if head.startswith(self._version, start):
                start += len(self._version)
            if head[start] == _ID and (size := head[start + 1]) < 128:
                stop = start + 2 + size
                request_id = head[start + 2 : stop].decode()
                start = stop
            if self._typed_by_size:
                known = self._typed_by_size.get(len(body) - start)
                if known is not None and (contents := known.contents(body, start)) is not None:
                    return known.header, self._arrays(known.header, contents, request_id), request_id
            header, offset = self._find(head, start)
        except (IndexError, UnicodeDecodeError):
            return None
        if header is None:
            return None
        if header.raw_bytes < 0:
            inputs = self._varying(body, offset, header, request_id)
        elif len(body) - offset == header.raw_bytes:
            inputs = self._fixed(body, offset, header, request_id)
        else:
            return None
        if inputs is None:
            return None
        header.used = True
        return header, inputs, request_id

    def _find(self, head: bytes, start: int) -> tuple[GrpcHeader | None, int]:
        """Return the header that starts there, with where it ends; raises IndexError if the message does so before."""
        at = start + self._key_guess
        header = self._known.get(head[start:at])
        if header is not None and (at == len(head) or head[at] == _RAW):
            return header, at
        at, end = start, min(len(head), start + self._max_key_bytes)
        while at < end and head[at] != _RAW:
            size = head[at + 1]
            if size > 127:
                size += (head[at + 2] << 7) - 127  # one more byte of length; a longer one leads to no known header
            at += 2 + size
        self._key_guess = at - start
        return self._known.get(head[start:at]), at

    def _fixed(self, body: bytes | memoryview, offset: int, header: GrpcHeader, request_id: str) -> Inputs | None:
        inputs: Inputs = {}
        for name, shape, dtype, head, byte_size, source in header.fields:
            if head is not None:
                start = offset + len(head)
                if body[offset:start] != head:
                    return None
                offset = start
            if source is None:
                inputs[name] = np.ndarray(shape, dtype, body, offset)
            else:
                inputs[name] = self._inputs.read(body, offset, byte_size, shape, source, request_id)
            offset += byte_size
        return inputs

    def _varying(self, body: bytes | memoryview, offset: int, header: GrpcHeader, request_id: str) -> Inputs | None:
        contents: list[Content] = []
        for _, _, _, head, byte_size, source in header.fields:
            if head is None and source is not None and source.region is not None:
                contents.append((body, 0, 0))
                continue
            if offset >= len(body) or body[offset] != _RAW:
                return None
            size, offset = read_varint(body, offset + 1)
            if head is not None and size != byte_size:
                return None
            contents.append((body, offset, size))
            offset += size
        return self._arrays(header, contents, request_id) if offset == len(body) else None

    def _arrays(self, header: GrpcHeader, contents: Sequence[Content], request_id: str) -> Inputs:
        inputs: Inputs = {}
        for (name, shape, dtype, _, _, source), (buffer, offset, byte_size) in zip(
            header.fields, contents, strict=True
        ):
            if source is None:
                inputs[name] = np.ndarray(shape, dtype, buffer, offset)
            else:
                inputs[name] = self._inputs.read(buffer, offset, byte_size, shape, source, request_id)
        return inputs

    def _read(self, body: bytes | memoryview) -> Recognised:
        split = SplitMessage(body, self._limits)
        header, contents = self._reader.read(body, split)
        if header.reusable and split.start is not None:
            if header.typed:
                self._typed.put(header, body, split.start)
            elif split.key is not None:
                self._cache.put(split.key, header)
        header.used = True
        return header, self._arrays(header, contents, header.id), header.id
