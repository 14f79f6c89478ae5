"""What AOTInductor has compiled (`model.pt2`): how it is called, and what it was exported for.

Source: PyTorch's package format. Compiled code takes an input to be of the size and type that it was exported for, and
reads beyond one that is smaller; its own check, off unless `AOTI_RUNTIME_CHECK_INPUTS` is set, also refuses single rows
where any number will do. So the sizes that are fixed are read from that check's text, in the code that comes along.
"""

import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class TorchPackage:
    """A loaded package: `call` takes its tensors in a row, which spares it to read its trees, and returns a list.

    `positions` are where inputs go, `places` which of the results each output is. `sizes` are those that were fixed
    when it was exported, by position and dimension.
    """

    call: Callable[..., Any]
    positions: dict[str, int]
    places: dict[str, int]
    sizes: dict[int, dict[int, int]]

    def place(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the tensors in a row.

        Raises:
            OtherSizeError: as it says.
        """
        for name, value in values.items():
            for dimension, size in self.sizes.get(self.positions[name], {}).items():
                if dimension >= len(value.shape) or value.shape[dimension] != size:
                    raise OtherSizeError(
                        f"input '{name}' has shape {list(value.shape)}, and the package was exported for {size} in "
                        f"dimension {dimension}"
                    )
        return torch_naming.Arguments(self.positions).place(values)


def load_package(torch: Any, path: str, device: Any, signature: Signature, inputs: Sequence[str]) -> TorchPackage:
    """Load a package for a device; `inputs` are those of `signature` and what is made for each batch.

    Raises:
        ModelLoadError: it is for another kind of device, or has no such tensors.
    """
    from torch._inductor import aoti_load_package

    model = signature.model_name
    on_gpu = device is not None and device.type == "cuda"
    _check_device(torch, path, on_gpu=on_gpu)
    loader = aoti_load_package(path, device_index=device.index if on_gpu else -1).loader
    taken, returned = torch_naming.tensor_names(loader.get_call_spec())
    try:
        positions = torch_naming.positions(inputs, taken)
        places = torch_naming.positions(tuple(signature.outputs), returned)
    except ValueError as error:
        raise ModelLoadError(f"failed to load model '{model}': {error}") from None
    _check_positions(model, positions)
    sizes, datatypes = _exported_for(path)
    for name, spec in signature.inputs.items():
        expected = datatypes.get(positions[name], spec.datatype.name)
        if spec.datatype.name != expected:
            raise ModelLoadError(
                f"failed to load model '{model}': input '{name}' is of type {spec.datatype.name} in the configuration "
                f"and of {expected} in the package"
            )

    def call(*tensors: Any) -> Any:
        return loader.run(list(tensors))

    return TorchPackage(call, positions, places, sizes)


def _check_device(torch: Any, path: str, *, on_gpu: bool) -> None:
    """Refuse a package for another device than its inputs come to: its code would take them for memory of its own."""
    loader = torch._C._aoti.AOTIModelPackageLoader
    made_for = loader.load_metadata_from_package(path, _MODEL).get("AOTI_DEVICE_KEY", "cpu")
    if (made_for == "cuda") != on_gpu:
        kind = "KIND_GPU" if made_for == "cuda" else "KIND_CPU"
        raise ModelLoadError(f"'{os.path.basename(path)}' is compiled for {made_for}: every instance has to be {kind}")


def _check_positions(model: str, positions: Mapping[str, int]) -> None:
    """Refuse indices in names of inputs that leave out one: what is exported may take more than tensors."""
    if set(positions.values()) != set(range(len(positions))):
        raise ModelLoadError(
            f"failed to load model '{model}': the indices of its inputs are not 0 to {len(positions) - 1}: "
            f"{', '.join(positions)}"
        )


def _exported_for(path: str) -> tuple[dict[int, dict[int, int]], dict[int, str]]:
    """Return the fixed sizes, by input and dimension, and the datatypes by input; none where no code comes along."""
    sizes: dict[int, dict[int, int]] = {}
    datatypes: dict[int, str] = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if _CODE.fullmatch(entry.filename) and entry.file_size <= _MAX_CODE_BYTES:
                code = archive.read(entry)
                for match in _SIZE.finditer(code):
                    position, dimension, size = map(int, match.groups())
                    sizes.setdefault(position, {})[dimension] = size
                datatypes |= {
                    int(match[1]): _DATATYPES[name]
                    for match in _TYPE.finditer(code)
                    if (name := match[2].decode()) in _DATATYPES
                }
    return sizes, datatypes
