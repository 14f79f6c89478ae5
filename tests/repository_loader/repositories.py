"""Makes model repositories out of text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

PYTHON_MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } '


def write(root: Path, files: Mapping[str, str | bytes | None]) -> str:
    """Write files below a folder; None makes a folder."""
    for name, content in files.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(root)


def python_model(name: str, config: str = TENSORS, versions: Sequence[int] = (1,)) -> dict[str, str | bytes | None]:
    files: dict[str, str | bytes | None] = {f"{name}/{version}/model.py": PYTHON_MODEL for version in versions}
    files[f"{name}/config.pbtxt"] = f'backend: "python" {config}'
    return files


Dims = Sequence[int | str]


def onnx_model(
    inputs: Mapping[str, Dims], outputs: Mapping[str, Dims], data_type: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """A graph of one node, good enough for whoever only reads its signature."""
    graph = helper.make_graph(
        [helper.make_node("Custom", list(inputs), list(outputs), domain="test")],
        "graph",
        [helper.make_tensor_value_info(name, data_type, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, data_type, dims) for name, dims in outputs.items()],
    )
    return helper.make_model(graph)


def onnx_bytes(inputs: Mapping[str, Dims], outputs: Mapping[str, Dims], data_type: int = TensorProto.FLOAT) -> bytes:
    return onnx_model(inputs, outputs, data_type).SerializeToString()


BATCHING_ONNX = onnx_bytes({"X": ["batch", 4]}, {"Y": ["batch", 4]})
FIXED_ONNX = onnx_bytes({"X": [1, 4]}, {"Y": [1, 4]})
