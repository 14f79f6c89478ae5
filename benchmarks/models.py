"""The models that the servers load: an MLP in ONNX, in Python, and in Python with two instances; an ensemble and a
Python model that calls the same models; an image echo; and two that compute for milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.compute_models import CLASS_COUNT, SMALL, EncoderSizes, encoder, resnet50

MLP_SIZES = (256, 512, 512, 10)
IMAGE_SHAPE = (3, 224, 224)

ECHO = '''"""Gives each request its input back."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "{input}").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("{output}", array)]))
        return responses
'''

MLP = '''"""Runs model.onnx beside this file, all requests of a batch at once."""

import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = os.path.join(os.path.dirname(__file__), "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        together = np.concatenate(inputs) if len(inputs) > 1 else inputs[0]
        (outputs,) = self.session.run(None, {"INPUT0": together})
        responses, row = [], 0
        for array in inputs:
            tensor = pb_utils.Tensor("OUTPUT0", outputs[row : row + len(array)])
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
            row += len(array)
        return responses
'''

BLS = '''"""Does what ensemble_py does, by calls of the same models."""

import triton_python_backend_utils as pb_utils

STEPS = (("pre_py", "X", "Y"), ("mlp_py", "INPUT0", "OUTPUT0"), ("post_py", "X", "Y"))


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]

    def answer(self, tensor):
        for model, taken, given in STEPS:
            request = pb_utils.InferenceRequest(
                model_name=model,
                requested_output_names=[given],
                inputs=[pb_utils.Tensor(taken, tensor.as_numpy())],
            )
            response = request.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            tensor = pb_utils.get_output_tensor_by_name(response, given)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
'''

MODEL_CONFIG = """name: "{name}"
{kind}
max_batch_size: {max_batch_size}
input [ {{ name: "{input}" data_type: TYPE_{datatype} dims: [ {input_dims} ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ {output_dims} ] }} ]
{rest}"""

INSTANCE = "instance_group [ { kind: KIND_CPU count: 1 } ]\ndynamic_batching { }\n"

PAIR = INSTANCE.replace("count: 1", "count: 2")
"""Each instance in a process of its own."""

ONE_THREAD = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'

INLINE = 'parameters { key: "eagleray.inline" value: { string_value: "true" } }\n'
"""For steps of the ensemble: their code is always quick, so that it may run in the process of the ensemble."""

ENSEMBLE = """ensemble_scheduling {
  step [
    { model_name: "pre_py" model_version: -1
      input_map { key: "X" value: "INPUT0" } output_map { key: "Y" value: "prepared" } },
    { model_name: "mlp_py" model_version: -1
      input_map { key: "INPUT0" value: "prepared" } output_map { key: "OUTPUT0" value: "scores" } },
    { model_name: "post_py" model_version: -1
      input_map { key: "X" value: "scores" } output_map { key: "Y" value: "OUTPUT0" } }
  ]
}
"""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The names and shapes (without the batch dimension) of a model's one input and one output."""

    input: str
    input_dims: tuple[int, ...]
    output: str
    output_dims: tuple[int, ...]
    datatype: str = "FP32"
    """Of the input; outputs are FP32."""


def encoder_tensors(sizes: EncoderSizes) -> Tensors:
    """Return what `compute_models.encoder` takes and gives."""
    return Tensors("TOKENS", (sizes.token_count,), "MEAN", (sizes.hidden,), "INT64")


MLP_TENSORS = Tensors("INPUT0", MLP_SIZES[:1], "OUTPUT0", MLP_SIZES[-1:])
TENSORS = {
    "mlp_onnx": MLP_TENSORS,
    "mlp_py": MLP_TENSORS,
    "ensemble_py": MLP_TENSORS,
    "bls_py": MLP_TENSORS,
    "pair_py": MLP_TENSORS,
    "pre_py": Tensors("X", MLP_SIZES[:1], "Y", MLP_SIZES[:1]),
    "post_py": Tensors("X", MLP_SIZES[-1:], "Y", MLP_SIZES[-1:]),
    "identity_img": Tensors("INPUT", IMAGE_SHAPE, "OUTPUT", IMAGE_SHAPE),
    "encoder": encoder_tensors(SMALL),
    "resnet50": Tensors("IMAGE", IMAGE_SHAPE, "SCORES", (CLASS_COUNT,)),
}
"""Every model of the repository."""


CALLED = {"bls_py": ("pre_py", "mlp_py", "post_py")}
"""The models that a model's code calls, which have to be loaded beside it."""

COMPUTE = {"encoder": encoder, "resnet50": resnet50}


def with_called(models: Sequence[str]) -> list[str]:
    """Return the models and those that they call."""
    return list(dict.fromkeys(name for model in models for name in (model, *CALLED.get(model, ()))))


def write_models(repository: Path) -> None:
    """Write the models that are missing. Weights are random, and the same each time."""
    for name, tensors in TENSORS.items():
        if not (repository / name / "config.pbtxt").exists():
            write_model(repository / name, name, tensors)


def write_model(folder: Path, name: str, tensors: Tensors) -> None:
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    kind, rest, max_batch_size = 'backend: "python"', INSTANCE, 64
    if name == "mlp_onnx":
        kind, rest = 'platform: "onnxruntime_onnx"', INSTANCE + ONE_THREAD
        onnx.save(mlp(), version / "model.onnx")
    elif name in COMPUTE:
        kind, rest, max_batch_size = 'platform: "onnxruntime_onnx"', INSTANCE, 16
        onnx.save(COMPUTE[name](), version / "model.onnx")
    elif name in ("mlp_py", "pair_py"):
        rest = INSTANCE + INLINE if name == "mlp_py" else PAIR
        (version / "model.py").write_text(MLP)
        onnx.save(mlp(), version / "model.onnx")
    elif name == "ensemble_py":
        kind, rest = 'platform: "ensemble"', ENSEMBLE
    elif name == "bls_py":
        rest = INSTANCE + INLINE
        (version / "model.py").write_text(BLS)
    else:
        max_batch_size = 8 if name == "identity_img" else 64
        rest = INSTANCE if name == "identity_img" else INSTANCE + INLINE
        (version / "model.py").write_text(ECHO.format(input=tensors.input, output=tensors.output))
    (folder / "config.pbtxt").write_text(config_of(name, kind, max_batch_size, tensors, rest))


def config_of(name: str, kind: str, max_batch_size: int, tensors: Tensors, rest: str) -> str:
    """Return the `config.pbtxt` of a model with one input and one output."""
    return MODEL_CONFIG.format(
        name=name,
        kind=kind,
        max_batch_size=max_batch_size,
        input=tensors.input,
        datatype=tensors.datatype,
        input_dims=", ".join(map(str, tensors.input_dims)),
        output=tensors.output,
        output_dims=", ".join(map(str, tensors.output_dims)),
        rest=rest,
    )


def mlp() -> onnx.ModelProto:
    """Make the MLP: `INPUT0 [batch, 256]` -> two hidden layers of 512 -> `OUTPUT0 [batch, 10]`."""
    random = np.random.default_rng(0)
    nodes, weights, tensor = [], [], "INPUT0"
    for index, (rows, columns) in enumerate(pairwise(MLP_SIZES)):
        last = index == len(MLP_SIZES) - 2
        weight = (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"weight_{index}"))
        weights.append(numpy_helper.from_array(np.zeros(columns, np.float32), f"bias_{index}"))
        result = "OUTPUT0" if last else f"sum_{index}"
        nodes.append(helper.make_node("Gemm", [tensor, f"weight_{index}", f"bias_{index}"], [result]))
        if not last:
            tensor = f"hidden_{index}"
            nodes.append(helper.make_node("Relu", [result], [tensor]))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["batch", MLP_SIZES[0]])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["batch", MLP_SIZES[-1]])],
        weights,
    )
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
