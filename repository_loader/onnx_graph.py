"""The inputs and outputs of an ONNX file, and the files it points at, without the onnx package.

Source: onnx.proto (field numbers below), and its page on external data.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.protobuf_wire import LENGTH_DELIMITED, VARINT, Readable, TruncatedMessage, signed, walk

DATA_TYPES = {
    1: "TYPE_FP32",
    2: "TYPE_UINT8",
    3: "TYPE_INT8",
    4: "TYPE_UINT16",
    5: "TYPE_INT16",
    6: "TYPE_INT32",
    7: "TYPE_INT64",
    8: "TYPE_STRING",
    9: "TYPE_BOOL",
    10: "TYPE_FP16",
    11: "TYPE_FP64",
    12: "TYPE_UINT32",
    13: "TYPE_UINT64",
    16: "TYPE_BF16",
}
_OTHER_DATA_TYPES = {
    14: "COMPLEX64",
    15: "COMPLEX128",
    17: "FLOAT8E4M3FN",
    18: "FLOAT8E4M3FNUZ",
    19: "FLOAT8E5M2",
    20: "FLOAT8E5M2FNUZ",
    21: "UINT4",
    22: "INT4",
    23: "FLOAT4E2M1",
    24: "FLOAT8E8M0",
    25: "UINT2",
    26: "INT2",
}
_OTHER_TYPES = {
    4: "ONNX_TYPE_SEQUENCE",
    5: "ONNX_TYPE_MAP",
    7: "ONNX_TYPE_OPAQUE",
    8: "ONNX_TYPE_SPARSETENSOR",
    9: "ONNX_TYPE_OPTIONAL",
}
"""What the protocol cannot carry, by its field of `TypeProto`."""
ORT_SUFFIX = ".ort"
"""Of files in ONNX Runtime's own format, which it tells by this too."""
_CARRIED = frozenset(DATA_TYPES.values())
_MAX_DEPTH = 32
_PAGE_BYTES = 1 << 15
_CUT_OFF = "it was cut off while it was read"


class OnnxFileError(Exception):
    """The file is no ONNX model, or it points where it must not."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output: `data_type` is one of `DATA_TYPES`, or ONNX's name of what the protocol cannot carry.

    It is "" where nothing is said of it, as of an output that was added by its name alone: ONNX Runtime knows it then.
    Symbolic dims are -1. `has_shape` is False where nothing is said of the shape, not even its rank.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    has_shape: bool = True

    @property
    def is_carried(self) -> bool:
        """Whether the protocol can carry its type."""
        return self.data_type in _CARRIED


@dataclass(frozen=True, slots=True)
class ExternalData:
    """A tensor whose bytes lie in another file; `size_bytes` 0 is up to the end of the file."""

    location: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """What a caller sees of a graph; `inputs` are without initializers, `optional_inputs` those that have one.

    `operators` are the names of those that it has, without their domains.
    """

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    optional_inputs: tuple[GraphTensor, ...]
    external_data: tuple[ExternalData, ...]
    operators: frozenset[str] = frozenset()


def read_onnx_graph(path: str) -> OnnxGraph:
    """Read a model file, or the `model.onnx` of a folder.

    Raises:
        OnnxFileError: it cannot be read, is cut off, is no ONNX model, or has external data outside its folder.
    """
    if os.path.isdir(path):
        folder, path = path, os.path.join(path, "model.onnx")
        if not os.path.exists(path):
            raise OnnxFileError(f"folder '{os.path.basename(folder)}' has no file 'model.onnx'")
    try:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes == 0:
                raise OnnxFileError(f"'{os.path.basename(path)}' is empty")
            graph = _Reader(_Pages(file.fileno(), size_bytes)).read()
    except OSError as error:
        raise OnnxFileError(f"'{os.path.basename(path)}' cannot be read: {error.strerror}") from error
    except (TruncatedMessage, UnicodeDecodeError) as error:
        raise OnnxFileError(f"'{os.path.basename(path)}' is not a whole ONNX model: {error}") from error
    for entry in set(graph.external_data):
        _check_external(entry, os.path.dirname(path))
    return graph


def _check_external(entry: ExternalData, folder: str) -> None:
    """Refuse data outside the folder, behind a link, or beyond the file's end: it could be any file of the machine."""
    location = entry.location
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or os.path.isabs(location) or location[0] == "\\" or ".." in parts:
        raise OnnxFileError(f"external data '{location}' is outside the model's folder")
    path = os.path.join(folder, location)
    if os.path.realpath(path) != os.path.join(os.path.realpath(folder), os.path.normpath(location)):
        raise OnnxFileError(f"external data '{location}' is behind a link")
    if not os.path.isfile(path):
        raise OnnxFileError(f"external data '{location}' is missing")
    status = os.stat(path)
    if status.st_nlink > 1:
        raise OnnxFileError(f"external data '{location}' has more than one hard link")
    if entry.offset < 0 or entry.size_bytes < 0 or entry.offset + entry.size_bytes > status.st_size:
        raise OnnxFileError(f"external data '{location}' ends before byte {entry.offset + entry.size_bytes}")


class _Pages:
    """The bytes of an open file, read where they are looked at.

    They are not mapped: whoever looked at a file that is cut off meanwhile, as when it is copied anew, would be killed.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._start = 0
        self._page = b""

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, index: int, /) -> int:
        at = index - self._start
        if not 0 <= at < len(self._page):
            self._start = index // _PAGE_BYTES * _PAGE_BYTES
            at = index - self._start
            self._page = os.pread(self._descriptor, _PAGE_BYTES, self._start)
            if at >= len(self._page):
                raise TruncatedMessage(_CUT_OFF)
        return self._page[at]

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two positions."""
        data = os.pread(self._descriptor, end - start, start)
        if len(data) < end - start:
            raise TruncatedMessage(_CUT_OFF)
        return data


class _Reader:
    """Walks one ModelProto; the numbers are fields of onnx.proto."""

    def __init__(self, data: _Pages) -> None:
        self._data = data
        self._buffer: Readable = data
        self._external: list[ExternalData] = []
        self._operators: set[str] = set()

    def read(self) -> OnnxGraph:
        inputs: list[GraphTensor] = []
        outputs: list[GraphTensor] = []
        initialized: set[str] = set()
        found = False
        for number, start, end in self._messages(0, len(self._data)):
            if number == 7:  # graph
                found = True
                self._graph(start, end, inputs, outputs, initialized)
            elif number == 20:  # training_info: initialization, algorithm
                for inner, inner_start, inner_end in self._messages(start, end):
                    if inner in (1, 2):
                        self._graph(inner_start, inner_end, [], [], set())
            elif number == 25:  # functions
                for inner, inner_start, inner_end in self._messages(start, end):
                    if inner == 7:
                        self._node(inner_start, inner_end, 0)
        if not found:
            raise TruncatedMessage("there is no graph in it")
        return OnnxGraph(
            tuple(tensor for tensor in inputs if tensor.name not in initialized),
            tuple(outputs),
            tuple(tensor for tensor in inputs if tensor.name in initialized),
            tuple(self._external),
            frozenset(self._operators),
        )

    def _messages(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        for number, wire_type, _, value, field_end in walk(self._buffer, start, end):
            if wire_type == LENGTH_DELIMITED:
                yield number, value, field_end

    def _text(self, start: int, end: int) -> str:
        return self._data.read(start, end).decode("utf-8")

    def _graph(
        self,
        start: int,
        end: int,
        inputs: list[GraphTensor],
        outputs: list[GraphTensor],
        initialized: set[str],
        depth: int = 0,
    ) -> None:
        if depth > _MAX_DEPTH:
            raise TruncatedMessage(f"its graphs nest more than {_MAX_DEPTH} deep")
        for number, value, field_end in self._messages(start, end):
            if number == 1:
                self._node(value, field_end, depth)
            elif number == 5:
                initialized.add(self._tensor(value, field_end))
            elif number == 15:
                initialized.add(self._sparse_tensor(value, field_end))
            elif number == 11:
                inputs.append(self._value_info(value, field_end))
            elif number == 12:
                outputs.append(self._value_info(value, field_end))

    def _node(self, start: int, end: int, depth: int) -> None:
        for number, value, field_end in self._messages(start, end):
            if number == 4:  # op_type
                self._operators.add(self._text(value, field_end))
            if number != 5:  # attribute
                continue
            for inner, inner_start, inner_end in self._messages(value, field_end):
                if inner in (5, 10):  # t, tensors
                    self._tensor(inner_start, inner_end)
                elif inner in (6, 11):  # g, graphs
                    self._graph(inner_start, inner_end, [], [], set(), depth + 1)
                elif inner in (22, 23):  # sparse_tensor, sparse_tensors
                    self._sparse_tensor(inner_start, inner_end)

    def _tensor(self, start: int, end: int) -> str:
        name = ""
        entries: dict[str, str] = {}
        for number, value, field_end in self._messages(start, end):
            if number == 8:
                name = self._text(value, field_end)
            elif number == 13:
                pair = {inner: self._text(at, to) for inner, at, to in self._messages(value, field_end)}
                entries[pair.get(1, "")] = pair.get(2, "")
        if entries:
            offset, size = _number(entries.get("offset", "")), _number(entries.get("length", ""))
            self._external.append(ExternalData(entries.get("location", ""), offset, size))
        return name

    def _sparse_tensor(self, start: int, end: int) -> str:
        name = ""
        for number, value, field_end in self._messages(start, end):
            if number == 1:  # values: its name is the name of the whole
                name = self._tensor(value, field_end)
            elif number == 2:
                self._tensor(value, field_end)
        return name

    def _value_info(self, start: int, end: int) -> GraphTensor:
        name, data_type = "", ""
        dims: tuple[int, ...] | None = ()
        for number, value, field_end in self._messages(start, end):
            if number == 1:
                name = self._text(value, field_end)
            elif number == 2:
                for inner, inner_start, inner_end in self._messages(value, field_end):
                    if inner == 1:  # tensor_type
                        data_type, dims = self._tensor_type(inner_start, inner_end)
                    else:
                        data_type = _OTHER_TYPES.get(inner, data_type)
        return GraphTensor(name, data_type, dims or (), has_shape=bool(data_type) and dims is not None)

    def _tensor_type(self, start: int, end: int) -> tuple[str, tuple[int, ...] | None]:
        data_type = ""
        dims: tuple[int, ...] | None = None
        for number, wire_type, _, value, field_end in walk(self._buffer, start, end):
            if number == 1 and wire_type == VARINT:
                data_type = DATA_TYPES.get(value) or _OTHER_DATA_TYPES.get(value, "UNDEFINED" if value else "")
            elif number == 2 and wire_type == LENGTH_DELIMITED:
                dims = tuple(self._dim(at, to) for inner, at, to in self._messages(value, field_end) if inner == 1)
        return data_type, dims

    def _dim(self, start: int, end: int) -> int:
        for number, wire_type, _, value, _ in walk(self._buffer, start, end):
            if number == 1 and wire_type == VARINT:
                size = signed(value)
                return size if size >= 0 else -1
        return -1


def _number(text: str) -> int:
    if not text:
        return 0
    try:
        return int(text)
    except ValueError as error:
        raise TruncatedMessage(f"'{text[:40]}' is no offset of external data") from error
