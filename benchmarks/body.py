"""Requests as they go over the wire, in files that the load generators send again and again, and the right answers."""

import json
import math
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from benchmarks.models import TENSORS, Tensors
from benchmarks.shared_region import INPUT_REGION, OUTPUT_REGION


@dataclass(frozen=True, slots=True)
class Body:
    """A request as it goes over the wire, in a file."""

    file: Path
    path: str
    headers: dict[str, str]


def example(tensors: Tensors, rows: int = 1) -> NDArray[np.generic]:
    """Return the input that all requests to a model with these tensors carry."""
    shape = (rows, *tensors.input_dims)
    random = np.random.default_rng(0)
    if tensors.datatype == "INT64":
        return random.integers(0, 1000, shape).astype("<i8")
    return random.standard_normal(shape).astype("<f4")


def output_size(tensors: Tensors) -> int:
    """Return the bytes of the answer to the example."""
    return 4 * math.prod(tensors.output_dims)


def http_body(model: str, folder: Path, tensors: Tensors | None = None, rows: int = 1) -> Body:
    """Write a request with binary tensors, as `tritonclient.http` sends it."""
    tensors = tensors or TENSORS[model]
    array = example(tensors, rows)
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": tensors.input,
                    "shape": list(array.shape),
                    "datatype": tensors.datatype,
                    "parameters": {"binary_data_size": array.nbytes},
                }
            ],
            "outputs": [{"name": tensors.output, "parameters": {"binary_data": True}}],
        },
        separators=(",", ":"),
    ).encode()
    file = folder / f"{model}.http"
    file.write_bytes(header + array.tobytes())
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    return Body(file, f"/v2/models/{model}/infer", headers)


def grpc_body(model: str, folder: Path, tensors: Tensors | None = None) -> Body:
    """Write a unary call with raw tensors."""
    tensors = tensors or TENSORS[model]
    array = example(tensors)
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
    request.inputs.add(name=tensors.input, datatype=tensors.datatype, shape=array.shape)
    request.outputs.add(name=tensors.output)
    return _grpc_body(request, folder / f"{model}.grpc")


def http_shared_body(model: str, folder: Path, tensors: Tensors | None = None) -> Body:
    """Write a request whose tensors lie in shared memory."""
    tensors = tensors or TENSORS[model]
    array = example(tensors)
    request = {
        "inputs": [
            {
                "name": tensors.input,
                "shape": list(array.shape),
                "datatype": tensors.datatype,
                "parameters": _shared(INPUT_REGION, array.nbytes),
            }
        ],
        "outputs": [{"name": tensors.output, "parameters": _shared(OUTPUT_REGION, output_size(tensors))}],
    }
    file = folder / f"{model}.shared.http"
    file.write_text(json.dumps(request, separators=(",", ":")))
    return Body(file, f"/v2/models/{model}/infer", {"Content-Type": "application/json"})


def grpc_shared_body(model: str, folder: Path, tensors: Tensors | None = None) -> Body:
    """Write a unary call whose tensors lie in shared memory."""
    tensors = tensors or TENSORS[model]
    array = example(tensors)
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name=tensors.input, datatype=tensors.datatype, shape=array.shape)
    output = request.outputs.add(name=tensors.output)
    for message, region, size in (
        (tensor, INPUT_REGION, array.nbytes),
        (output, OUTPUT_REGION, output_size(tensors)),
    ):
        message.parameters["shared_memory_region"].string_param = region
        message.parameters["shared_memory_byte_size"].int64_param = size
    return _grpc_body(request, folder / f"{model}.shared.grpc")


def _shared(region: str, byte_size: int) -> dict[str, str | int]:
    return {"shared_memory_region": region, "shared_memory_byte_size": byte_size}


def _grpc_body(request: service_pb2.ModelInferRequest, file: Path) -> Body:
    """Write a call as it goes into an HTTP/2 stream: flag, length, message."""
    message = request.SerializeToString()
    file.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    path = "/inference.GRPCInferenceService/ModelInfer"
    return Body(file, path, {"content-type": "application/grpc", "te": "trailers"})


@cache
def expected(model: str, models: Path) -> NDArray[np.generic]:
    """Return the right answer to the example request."""
    tensors = TENSORS[model]
    if tensors.output_dims == tensors.input_dims:
        return example(tensors)
    file = models / (model if (models / model / "1/model.onnx").exists() else "mlp_onnx") / "1/model.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    answer: NDArray[np.float32] = session.run(None, {session.get_inputs()[0].name: example(tensors)})[0]
    return answer
