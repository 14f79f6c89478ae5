"""Requests that name shared-memory regions which a model's process cannot reach: this process copies what is in them.

Inputs are copied out of their regions into the request, outputs out of the response into theirs. A replica on another
node can reach none of this node's regions; one on this node reaches those in the memory of a GPU where its model takes
inputs from there, and only for these.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink
from deployments.lane.wire import GRPC_STREAM, HTTP
from protocol import grpc_parameters
from protocol.errors import Internal, InvalidArgument, ServingError
from protocol.json_text import read_json, write_json
from protocol.protobuf_wire import fields
from protocol.shared_memory import RegionRange, SharedMemory, read_region

_NAME = b"shared_memory_region"
# So much is looked through at once: a copy of it stays in the processor's cache.
_STEP = 1 << 18
# To look through as much takes less time than to walk over fields.
_SMALL_BYTES = 1 << 14
_RAW_FIELD = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_PARAMETERS = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


class ClientRegions(SharedMemory, Protocol):
    """The regions that clients of this node have registered."""

    @property
    def registered(self) -> bool:
        """Whether there is any."""
        ...

    @property
    def on_devices(self) -> bool:
        """Whether there is any in a GPU's memory."""
        ...

    def is_on_device(self, region: str) -> bool:
        """Whether a region is in a GPU's memory."""
        ...

    def gpu_of(self, region: str) -> str:
        """Return the UUID of the GPU that a region is on, "" where there is none or it is not known."""
        ...

    def open(self, place: RegionRange) -> "OpenRange":
        """Return a range, which stays even if its region is unregistered; raises NotFound or InvalidArgument."""
        ...


class OpenRange(Protocol):
    """A range of a region, in whatever memory."""

    @property
    def byte_size(self) -> int:
        """How much room there is."""
        ...

    def read(self) -> bytes:
        """Return a copy of it. Raises Internal."""
        ...

    def write(self, content: bytes) -> None:
        """Copy bytes that there is room for to its beginning. Raises ServingError."""
        ...


def names_region(parts: Sequence[Buffer], json_length: int | None, wire: int) -> bool:
    """Whether a request may name a region; large tensors in binary are not looked through."""
    body = parts[0]
    if wire != HTTP and len(body) <= _SMALL_BYTES:
        return _NAME in bytes(body)
    if wire == HTTP:
        return _has_name(body, 0, len(body) if json_length is None else min(json_length, len(body)))
    try:
        return any(number != _RAW_FIELD and _has_name(body, start, end) for number, _, start, _, end in fields(body))
    except InvalidArgument:
        return False  # the replica says what is wrong


def _has_name(body: Buffer, start: int, end: int) -> bool:
    overlap = len(_NAME) - 1
    return any(_NAME in bytes(body[at : min(at + _STEP + overlap, end)]) for at in range(start, end, _STEP))


class Inlined(NamedTuple):
    """A request for a replica, and the sink that copies its outputs out; `gpus` are those that it still names."""

    parts: Sequence[Buffer]
    json_length: int | None
    sink: Sink
    gpus: frozenset[str] = frozenset()


def inline(
    parts: Sequence[Buffer],
    json_length: int | None,
    wire: int,
    regions: ClientRegions,
    sink: Sink,
    *,
    far: bool,
    gpus: Collection[str] = (),
) -> Inlined:
    """Return the request with its inputs copied in, and the sink that copies its outputs out again.

    What a model's process on this node can reach is left to it, unless the model is `far`: inputs on `gpus`, and all
    that is in system shared memory.

    Raises:
        ServingError: a region is unknown or a range is not inside it; the request is otherwise left for the replica to
            judge.
    """
    body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
    copied = _Copied(regions, far, gpus)
    if wire == HTTP:
        inlined = _inline_http(body, json_length, copied, sink)
    else:
        inlined = _inline_grpc(body, wire, copied, sink)
    if not copied.copies:
        inlined = Inlined(parts, json_length, sink)  # as it came, and so as the replica may know it
    return inlined._replace(gpus=frozenset(copied.gpus))


class _Copied:
    """Tells which regions are copied, and remembers where the client wants its outputs."""

    def __init__(self, regions: ClientRegions, far: bool, reached: Collection[str]) -> None:
        self.places: dict[str, OpenRange] = {}
        self.gpus: set[str] = set()
        self.copies = False
        self._outputs: set[str] = set()
        self._regions = regions
        self._far = far
        self._reached = reached

    def open_input(self, place: RegionRange | None, datatype: object) -> OpenRange | None:
        """Return what `open` does, but None for numbers on a GPU that the model reaches."""
        if place is not None and datatype != "BYTES" and (gpu := self._regions.gpu_of(place.region)) in self._reached:
            self._regions.open(place)
            self.gpus.add(gpu)
            return None
        return self.open(place)

    def takes_output(self, name: str, place: RegionRange | None) -> bool:
        """Whether an output is copied here; of a name that comes twice the first counts. Raises as `open` does."""
        opened = self.open(place)
        if opened is not None and name not in self._outputs:
            self.places[name] = opened
        self._outputs.add(name)
        return opened is not None

    def open(self, place: RegionRange | None) -> OpenRange | None:
        """Return a range that is copied here, None for others; raises NotFound or InvalidArgument."""
        if place is None or not (self._far or self._regions.is_on_device(place.region)):
            return None
        self.copies = True
        return self._regions.open(place)


def _inline_http(body: bytes, json_length: int | None, copied: _Copied, sink: Sink) -> Inlined:
    length = len(body) if json_length is None else json_length
    try:
        header = read_json(body[:length])
    except ValueError:  # whoever runs the request says what is wrong with it
        return Inlined([body], json_length, sink)
    contents: list[Buffer] = []
    offset = length
    for tensor, parameters in _tensors(header, "inputs"):
        place = copied.open_input(read_region(parameters), tensor.get("datatype"))
        size = parameters.get("binary_data_size")
        if place is not None:
            _forget(parameters)
            parameters["binary_data_size"] = place.byte_size
            contents.append(place.read())
        elif isinstance(size, int):
            contents.append(body[offset : offset + size])
            offset += size
    contents.append(body[offset:])
    for tensor, parameters in _tensors(header, "outputs"):
        if copied.takes_output(str(tensor.get("name")), read_region(parameters)):
            _forget(parameters)
            parameters["binary_data"] = True
    try:
        head = write_json(header)
    except (ValueError, RecursionError):  # of strings that are none, or nested too deep
        return Inlined([body], json_length, sink)
    return Inlined([head, *contents], len(head), _HttpSink(sink, copied.places) if copied.places else sink)


def _inline_grpc(body: bytes, wire: int, copied: _Copied, sink: Sink) -> Inlined:
    try:
        request = ModelInferRequest.FromString(body)
    except DecodeError:
        return Inlined([body], None, sink)
    raw = list(request.raw_input_contents)
    contents: list[bytes] = []
    for tensor in request.inputs:
        place = copied.open_input(grpc_parameters.read_region(tensor), tensor.datatype)
        if place is not None:
            _forget(tensor.parameters)
            contents.append(place.read())
        elif not tensor.HasField("contents") and "shared_memory_region" not in tensor.parameters and raw:
            contents.append(raw.pop(0))
    del request.raw_input_contents[:]
    request.raw_input_contents.extend(contents + raw)
    for wanted in request.outputs:  # one without parameters leaves it to the next of its name
        if wanted.parameters and copied.takes_output(wanted.name, grpc_parameters.read_region(wanted)):
            _forget(wanted.parameters)
    message = request.SerializeToString()
    if not copied.places:
        return Inlined([message], None, sink)
    copying = _GrpcStreamSink if wire == GRPC_STREAM else _GrpcSink
    return Inlined([message], None, copying(sink, copied.places))


def _tensors(header: Any, member: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the well-formed tensors, each with its parameters."""
    tensors = header.get(member) if isinstance(header, dict) else None
    if not isinstance(tensors, list):
        return []
    found = [(tensor, tensor.get("parameters", {})) for tensor in tensors if isinstance(tensor, dict)]
    return [(tensor, parameters) for tensor, parameters in found if isinstance(parameters, dict)]


def _forget(parameters: Any) -> None:
    for name in _PARAMETERS:
        parameters.pop(name, None)


class _CopyingSink:
    """Copies outputs into their regions and passes the rest on, up to a response that does not fit."""

    def __init__(self, sink: Sink, places: dict[str, OpenRange]) -> None:
        self._sink = sink
        self._places = places
        self._failed = False

    def on_error(self, error: ServingError) -> None:
        if not self._failed:
            self._sink.on_error(error)

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        if self._failed:
            return
        body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        try:
            length, kept = self._copy(json_length, body)
        except Exception as error:
            self.on_error(
                error
                if isinstance(error, ServingError)
                else Internal(f"the response can not be copied into shared memory: {error}")
            )
            self._failed = True
            return
        self._sink.on_response(length, kept, final)

    def _copy(self, json_length: int | None, body: bytes) -> tuple[int | None, list[Buffer]]:
        raise NotImplementedError

    def _store(self, name: str, content: bytes) -> None:
        place = self._places[name]
        if len(content) > place.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{name}' ({place.byte_size} bytes) should "
                f"be at least {len(content)} bytes to hold the results"
            )
        place.write(content)


class _HttpSink(_CopyingSink):
    def _copy(self, json_length: int | None, body: bytes) -> tuple[int | None, list[Buffer]]:
        length = len(body) if json_length is None else json_length
        header = read_json(body[:length])
        kept: list[Buffer] = []
        offset = length
        for tensor in header["outputs"]:
            size = tensor.get("parameters", {}).get("binary_data_size", 0)
            content = body[offset : offset + size]
            offset += size
            if tensor["name"] in self._places:
                self._store(tensor["name"], content)
                tensor.pop("parameters", None)
            elif size:
                kept.append(content)
        head = write_json(header)
        return len(head) if kept else None, [head, *kept]


class _GrpcSink(_CopyingSink):
    def _copy(self, json_length: int | None, body: bytes) -> tuple[int | None, list[Buffer]]:
        response = ModelInferResponse.FromString(body)
        self._store_all(response)
        return None, [response.SerializeToString()]

    def _store_all(self, response: ModelInferResponse) -> None:
        for index, tensor in enumerate(response.outputs):
            if tensor.name in self._places and index < len(response.raw_output_contents):
                self._store(tensor.name, response.raw_output_contents[index])
                response.raw_output_contents[index] = b""


class _GrpcStreamSink(_GrpcSink):
    def _copy(self, json_length: int | None, body: bytes) -> tuple[int | None, list[Buffer]]:
        message = ModelStreamInferResponse.FromString(body)
        self._store_all(message.infer_response)
        return None, [message.SerializeToString()]
