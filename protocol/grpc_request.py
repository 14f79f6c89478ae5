"""A ModelInferRequest without its raw contents, read and checked against the model's signature."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.grpc_contents import typed_bytes
from protocol.grpc_parameters import GrpcParameters, read_class_count, read_parameters, read_region
from protocol.grpc_route import check_route, read_route
from protocol.large_input import LARGE_BYTES, check_fields, cut
from protocol.limits import Limits
from protocol.normalise import (
    Shape,
    check_bounds,
    check_byte_size,
    check_outputs,
    effective_priority,
    normalise,
    request_prefix,
)
from protocol.output_plan import BINARY, OutputForm, OutputPlan, OutputPlans
from protocol.protobuf_wire import LENGTH_DELIMITED, field_head, fields, malformed
from protocol.request_header import InputSource, RequestHeader
from protocol.shared_memory import RegionRange
from protocol.signature import Signature

RAW_FIELD = 7
INPUTS_FIELD = 5
_PARAMETERS, _OUTPUTS = 4, 6
# An input without values of its own, but for hostile ones, is smaller.
_TYPED_BYTES = 1 << 14
_CANONICAL = {number: number << 3 | LENGTH_DELIMITED for number in (_PARAMETERS, INPUTS_FIELD, _OUTPUTS)}

Content = tuple[bytes | memoryview, int, int]
"""The bytes of an input: a buffer, where in it they start, and how many they are."""

Field = tuple[str, Shape, np.dtype[np.generic], bytes | None, int, InputSource | None]
"""Input name, shape as the model sees it, type, the head of its raw contents (None: of a size of their own, or without
any), their size, and where the values are if not simply there."""


class GrpcEncoding:
    """What the encoders need to know of a request: the plan, and the version to name in an empty final response.

    `empty_final_version` is as the client wrote it, None if no such response is wanted.
    """

    __slots__ = ("empty_final_version", "plan")

    def __init__(self, plan: OutputPlan, empty_final_version: str | None = None) -> None:
        self.plan = plan
        self.empty_final_version = empty_final_version


class GrpcHeader(RequestHeader):
    """A checked message: all that a request is apart from its contents.

    `raw_bytes` is what its raw contents take, heads included; -1 if that may differ.
    """

    __slots__ = ("encoding", "fields", "raw_bytes", "reusable", "typed")

    def __init__(
        self,
        request_id: str,
        fields: tuple[Field, ...],
        rows: int,
        parameters: GrpcParameters,
        priority: int,
        plan: OutputPlan,
        typed: bool,
        version: str,
    ) -> None:
        super().__init__(request_id, (), rows, parameters, priority, plan)
        self.fields = fields
        fixed = all([head is not None or _has_region(source) for _, _, _, head, _, source in fields])
        raw_bytes = sum([len(head) + size for _, _, _, head, size, _ in fields if head is not None])
        self.raw_bytes = raw_bytes if fixed else -1
        self.encoding = GrpcEncoding(plan, version if parameters.empty_final else None)
        self.typed = typed
        self.reusable = not parameters.empty_final


def _has_region(source: InputSource | None) -> bool:
    return source is not None and source.region is not None


class SplitMessage:
    """A ModelInferRequest with its raw contents apart.

    `start` is where its id ends, None where such messages cannot be recognised by their bytes. `key` is what recognises
    it there, None if that is too long. `strings` are those of each input that its message is without, as
    `large_input.cut` has them.
    """

    __slots__ = ("key", "message", "raw", "start", "strings")

    def __init__(self, body: bytes | memoryview, limits: Limits) -> None:
        """Cut it.

        Raises:
            InvalidArgument: the bytes are no such message, or it has more parts than a message may have.
        """
        most = {
            _PARAMETERS: limits.max_parameters,
            INPUTS_FIELD: limits.max_inputs,
            _OUTPUTS: limits.max_outputs,
            RAW_FIELD: limits.max_inputs,
        }
        counts = dict.fromkeys(most, 0)
        described: list[bytes] = []
        self.raw: list[Content] = []
        self.strings: list[Sequence[bytes]] = []
        ordered, previous, key_start, key_end = True, 0, 0, len(body)
        for number, wire_type, start, value, end in fields(body):
            if number in counts:
                counts[number] += 1
            ordered = ordered and previous <= number <= RAW_FIELD and wire_type == LENGTH_DELIMITED
            if number == RAW_FIELD and wire_type == LENGTH_DELIMITED:
                key_end = min(key_end, start)
                if counts[number] <= most[number]:
                    self.raw.append((body, value, end - value))
            elif number not in most or counts[number] <= most[number]:
                described.append(self._described(body, number, wire_type, start, value, end))
                if number < _PARAMETERS:
                    key_start = end
                else:
                    ordered = ordered and body[start] == _CANONICAL.get(number)
            previous = number
        for number, name in ((_PARAMETERS, "parameters"), (INPUTS_FIELD, "inputs"), (_OUTPUTS, "outputs")):
            if counts[number] > most[number]:
                raise InvalidArgument(f"request has {counts[number]} {name}, more than {most[number]}")
        short = key_end - key_start <= limits.header_cache_key_bytes
        self.start = key_start if ordered else None
        self.key = bytes(body[key_start:key_end]) if ordered and short else None
        self.message = _parsed(b"".join(described))

    def _described(
        self, body: bytes | memoryview, number: int, wire_type: int, start: int, value: int, end: int
    ) -> bytes:
        """Return a field for the parser, without the strings that it would be long over."""
        large = wire_type == LENGTH_DELIMITED and end - value > LARGE_BYTES
        if number == INPUTS_FIELD and wire_type == LENGTH_DELIMITED:
            tensor, strings = cut(bytes(body[value:end])) if large else (b"", ())
            self.strings.append(strings)
            if strings:
                return field_head(INPUTS_FIELD, len(tensor)) + tensor
        elif large and number in (_PARAMETERS, _OUTPUTS):
            kind = ModelInferRequest.DESCRIPTOR.fields_by_number[number].message_type
            check_fields(memoryview(body)[value:end], kind)
        return bytes(body[start:end])


def has_typed_contents(body: bytes | memoryview) -> bool:
    """Whether inputs of a large ModelInferRequest hold values of their own, which are read one by one."""
    try:
        for number, wire_type, _, value, end in fields(body):
            if number == RAW_FIELD:
                return False
            if number == INPUTS_FIELD and wire_type == LENGTH_DELIMITED and end - value > _TYPED_BYTES:
                return True
    except InvalidArgument:
        return False
    return False


def _parsed(described: bytes) -> Any:
    try:
        return ModelInferRequest.FromString(described)
    except DecodeError:
        raise malformed() from None


class _Input:
    """One input as it was sent; `content` is None if it is in shared memory."""

    __slots__ = ("content", "datatype", "name", "region", "shape")

    def __init__(self, tensor: Any, limits: Limits) -> None:
        self.name: str = tensor.name
        self.datatype: str = tensor.datatype
        check_bounds(self.name, tensor.shape, limits)
        self.shape = tuple(tensor.shape)
        self.region: RegionRange | None = None
        self.content: Content | None = None
        if self.datatype not in BY_NAME:
            raise InvalidArgument(f"invalid datatype for input {self.name}")


class GrpcRequestReader:
    """Reads the messages to one model."""

    def __init__(self, signature: Signature, limits: Limits) -> None:
        self._signature = signature
        self._limits = limits
        self._plans = OutputPlans(signature)

    def read(self, body: bytes | memoryview, split: SplitMessage) -> tuple[GrpcHeader, list[Content]]:
        """Return the checked message and the contents of each of its inputs, empty for those in shared memory.

        Raises:
            InvalidArgument: with Triton's text.
        """
        message = split.message
        check_route(read_route(body), message.model_name, message.model_version)
        request_id = message.id
        parameters = read_parameters(message.parameters, self._limits)
        inputs = self._read_inputs(message, request_id)
        self._find_data(split, inputs)
        forms = _forms(message.outputs)
        check_outputs(self._signature, forms)
        rows, shapes = normalise(
            self._signature, [(each.name, each.datatype, each.shape) for each in inputs], request_id
        )
        sent = zip(reversed(inputs), reversed(shapes), strict=True)
        parts = tuple([self._field(each, shape, request_id) for each, shape in sent][::-1])
        plan = self._plans.plan(BINARY, forms)
        priority = effective_priority(self._signature, parameters.priority)
        typed = any([tensor.HasField("contents") for tensor in message.inputs])
        version = message.model_version
        header = GrpcHeader(request_id, parts, rows, parameters, priority, plan, typed, version)
        return header, [each.content or (b"", 0, 0) for each in inputs]

    def _read_inputs(self, message: Any, request_id: str) -> list[_Input]:
        inputs: list[_Input] = []
        names: set[str] = set()
        for tensor in message.inputs:
            read = _Input(tensor, self._limits)
            if read.name in names:
                raise InvalidArgument(f"{request_prefix(request_id)}input '{read.name}' already exists in request")
            names.add(read.name)
            inputs.append(read)
        return inputs

    def _find_data(self, split: SplitMessage, inputs: Sequence[_Input]) -> None:
        raw = split.raw
        left = iter(raw)
        of_model = f"for model '{self._signature.model_name}'"
        for tensor, strings, each in zip(split.message.inputs, split.strings, inputs, strict=True):
            each.region = read_region(tensor)
            typed = tensor.HasField("contents")
            if each.region is not None:
                if typed:
                    raise InvalidArgument(
                        "unexpected 'content' provided when using shared memory for input tensor "
                        f"'{each.name}' {of_model}"
                    )
            elif typed:
                if raw:
                    raise InvalidArgument(
                        "contents field must not be specified when using raw_input_contents for "
                        f"'{each.name}' {of_model}"
                    )
                content = typed_bytes(tensor, strings, self._signature.model_name, self._limits)
                each.content = content, 0, len(content)
            else:
                each.content = next(left, None)
                if each.content is None:
                    raise InvalidArgument(f"unable to find data for input tensor '{each.name}' {of_model} in request.")

    def _field(self, each: _Input, shape: Shape, request_id: str) -> Field:
        spec = self._signature.inputs[each.name]
        kind = spec.datatype.numpy.kind
        byte_size = each.content[2] if each.content is not None else 0
        if kind != "O":
            sent = byte_size if each.region is None else each.region.byte_size
            check_byte_size(self._signature, spec, each.shape, sent, request_id)
        source = InputSource(spec, False, each.region) if each.region is not None or kind in "Ob" else None
        head = field_head(RAW_FIELD, byte_size) if each.region is None and kind != "O" else None
        return each.name, shape, spec.datatype.numpy, head, byte_size, source


def _forms(outputs: Iterable[Any]) -> dict[str, OutputForm]:
    """Return how to send each output; of one that is named twice the first with parameters counts."""
    forms: dict[str, OutputForm] = {}
    for tensor in outputs:
        form = _form(tensor)
        if forms.get(tensor.name, BINARY) is BINARY:
            forms[tensor.name] = form
    return forms


def _form(tensor: Any) -> OutputForm:
    if not tensor.parameters:
        return BINARY
    class_count = read_class_count(tensor)
    region = read_region(tensor)
    if region is not None:
        if class_count:
            raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
        return OutputForm(False, 0, region)
    return OutputForm(True, class_count) if class_count else BINARY
