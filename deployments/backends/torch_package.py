"""What AOTInductor has compiled (`model.pt2`): how it is called, and what it was exported for.

Source: PyTorch's package format. Compiled code takes an input to be of the size and type that it was exported for, and
reads beyond one that is smaller; its own check, off unless `AOTI_RUNTIME_CHECK_INPUTS` is set, also refuses single rows
where any number will do. So the sizes that are fixed, and those that inputs share, are read from that check, in the C++
code that comes along.
"""

import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deployments.backends import torch_naming
from deployments.backends.backend import ModelLoadError
from protocol.signature import Signature

_MODEL: Final = "model"
_CODE: Final = re.compile(rf"(?:[^/]+/)?data/aotinductor/{_MODEL}/[^/]+\.cpp")
_MAX_CODE_BYTES: Final = 64 << 20
_SIZE: Final = re.compile(rb'"input_handles\[(\d+)\]: unmatched dim value at (\d+), "\s*<< "expected: (\d+), "')
_TYPE: Final = re.compile(
    rb'"input_handles\[(\d+)\]: unmatched dtype, "\s*<< "expected: " << \w+ << "\(at::k(\w+)\), "'
)
_COUNT: Final = re.compile(rb"\(input_handles, (\d+)\);")
_INPUT: Final = re.compile(rb"auto (\w+) = std::move\(inputs\[(\d+)\]\);")
_SHAPE: Final = re.compile(rb'assert_size_stride\((\w+), \{([^{}]*)\}, \{[^{}]*\}, "input"\)')
_SYMBOL: Final = re.compile(r"[su]\d+")
_DATATYPES: Final = {
    "Bool": "BOOL",
    "Byte": "UINT8",
    "Char": "INT8",
    "Short": "INT16",
    "Int": "INT32",
    "Long": "INT64",
    "Half": "FP16",
    "BFloat16": "BF16",
    "Float": "FP32",
    "Double": "FP64",
}


class OtherSizeError(Exception):
    """An input has not the size that the package was exported for; the message names it."""


@dataclass
class _Exported:
    """What the code says of the tensors that it takes, by their positions; nothing where no code comes along.

    `sizes` are fixed, by dimension. `shared` are groups of positions and dimensions that are of one size.
    """

    count: int | None = None
    sizes: dict[int, dict[int, int]] = field(default_factory=dict)
    shared: list[list[tuple[int, int]]] = field(default_factory=list)
    datatypes: dict[int, str] = field(default_factory=dict)


class TorchPackage:
    """A loaded package: `call` takes its tensors in a row, which spares it to read its trees, and returns a list.

    `places` says which of the results each output is.
    """

    def __init__(
        self, call: Callable[..., Any], positions: dict[str, int], places: dict[str, int], exported: _Exported
    ) -> None:
        self.call = call
        self.places = places
        self._arguments = torch_naming.Arguments(positions)
        self._names = {position: name for name, position in positions.items()}
        self._exported = exported

    def place(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the tensors in a row.

        Raises:
            OtherSizeError: as it says.
        """
        tensors = self._arguments.place(values)
        shapes = [[] if tensor is None else list(tensor.shape) for tensor in tensors]
        for position, fixed in self._exported.sizes.items():
            for dimension, size in fixed.items():
                if _size(shapes[position], dimension) != size:
                    raise OtherSizeError(
                        f"input '{self._names[position]}' has shape {shapes[position]}, and the package was exported "
                        f"for {size} in dimension {dimension}"
                    )
        for (first, its), *others in self._exported.shared:
            for other, dimension in others:
                if _size(shapes[first], its) != _size(shapes[other], dimension):
                    raise OtherSizeError(
                        f"dimension {its} of input '{self._names[first]}', which has shape {shapes[first]}, must be as "
                        f"large as dimension {dimension} of input '{self._names[other]}', which has {shapes[other]}"
                    )
        return tensors


def _size(shape: Sequence[int], dimension: int) -> int:
    return shape[dimension] if dimension < len(shape) else -1


def load_package(torch: Any, path: str, device: Any, signature: Signature, inputs: Sequence[str]) -> TorchPackage:
    """Load a package for a device; `inputs` are those of `signature` and what is made for each batch.

    Raises:
        ModelLoadError: it is for another kind of device, or has other tensors.
    """
    from torch._inductor import aoti_load_package

    model = signature.model_name
    on_gpu = device is not None and device.type == "cuda"
    _check_device(torch, path, on_gpu=on_gpu)
    loader = aoti_load_package(path, device_index=device.index if on_gpu else -1).loader
    taken, returned = torch_naming.tensor_names(loader.get_call_spec())
    if returned == ["RESULT"] and "RESULT[0]" in signature.outputs:  # as Triton 26.03 calls it
        returned = ["RESULT[0]"]
    try:
        indices = torch_naming.positions(inputs, taken)
        places = torch_naming.positions(tuple(signature.outputs), returned)
    except ValueError as error:
        raise ModelLoadError(f"failed to load model '{model}': {error}") from None
    # What was exported as a constant has an index, and the code does not take it.
    positions = {name: position for position, name in enumerate(sorted(indices, key=lambda name: indices[name]))}
    exported = _read_code(path)
    if exported.count not in (None, len(inputs)):
        raise ModelLoadError(
            f"unable to load model '{model}', configuration expects {len(inputs)} inputs, model provides "
            f"{exported.count}"
        )
    for name, spec in signature.inputs.items():
        expected = exported.datatypes.get(positions[name], spec.datatype.name)
        if spec.datatype.name != expected:
            raise ModelLoadError(
                f"failed to load model '{model}': input '{name}' is of type {spec.datatype.name} in the configuration "
                f"and of {expected} in the package"
            )

    def call(*tensors: Any) -> Any:
        return loader.run(list(tensors))

    return TorchPackage(call, positions, places, exported)


def _check_device(torch: Any, path: str, *, on_gpu: bool) -> None:
    """Refuse a package for another device than its inputs come to: its code would take them for memory of its own."""
    loader = torch._C._aoti.AOTIModelPackageLoader
    made_for = loader.load_metadata_from_package(path, _MODEL).get("AOTI_DEVICE_KEY", "cpu")
    if (made_for == "cuda") != on_gpu:
        kind = "KIND_GPU" if made_for == "cuda" else "KIND_CPU"
        raise ModelLoadError(f"'{os.path.basename(path)}' is compiled for {made_for}: every instance has to be {kind}")


def _read_code(path: str) -> _Exported:
    exported = _Exported()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if _CODE.fullmatch(entry.filename) and entry.file_size <= _MAX_CODE_BYTES:
                _read(archive.read(entry), exported)
    return exported


def _read(code: bytes, exported: _Exported) -> None:
    if count := _COUNT.search(code):
        exported.count = int(count[1])
    for match in _SIZE.finditer(code):
        position, dimension, size = map(int, match.groups())
        exported.sizes.setdefault(position, {})[dimension] = size
    for match in _TYPE.finditer(code):
        if (name := match[2].decode()) in _DATATYPES:
            exported.datatypes[int(match[1])] = _DATATYPES[name]
    positions = {name: int(position) for name, position in _INPUT.findall(code)}
    groups: dict[str, list[tuple[int, int]]] = {}
    for name, sizes in _SHAPE.findall(code):
        for dimension, size in enumerate(sizes.decode().split(",")):
            if _SYMBOL.fullmatch(symbol := size.strip()) and name in positions:
                groups.setdefault(symbol, []).append((positions[name], dimension))
    exported.shared += [group for group in groups.values() if len(group) > 1]
