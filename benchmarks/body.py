"""Requests as they go over the wire, in files that the load generators send again and again, and the right answers."""

import json
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from benchmarks.models import TENSORS


@dataclass(frozen=True, slots=True)
class Body:
    """A request as it goes over the wire, in a file."""

    file: Path
    path: str
    headers: dict[str, str]


@cache
def example(model: str) -> NDArray[np.float32]:
    """Return the input that all requests to the model carry, one row."""
    shape = (1, *TENSORS[model].input_dims)
    return np.random.default_rng(0).standard_normal(shape).astype("<f4")


def http_body(model: str, folder: Path) -> Body:
    """Write a request with binary tensors, as `tritonclient.http` sends it."""
    tensors, array = TENSORS[model], example(model)
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": tensors.input,
                    "shape": list(array.shape),
                    "datatype": "FP32",
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


def grpc_body(model: str, folder: Path) -> Body:
    """Write a unary call as it goes into an HTTP/2 stream: flag, length, message."""
    tensors, array = TENSORS[model], example(model)
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
    request.inputs.add(name=tensors.input, datatype="FP32", shape=array.shape)
    request.outputs.add(name=tensors.output)
    message = request.SerializeToString()
    file = folder / f"{model}.grpc"
    file.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    path = "/inference.GRPCInferenceService/ModelInfer"
    return Body(file, path, {"content-type": "application/grpc", "te": "trailers"})


def expected(model: str, models: Path) -> NDArray[np.float32]:
    """Return the right answer to the example request."""
    if TENSORS[model].output_dims == TENSORS[model].input_dims:
        return example(model)
    session = onnxruntime.InferenceSession(models / "mlp_onnx/1/model.onnx", providers=["CPUExecutionProvider"])
    answer: NDArray[np.float32] = session.run(None, {"INPUT0": example(model)})[0]
    return answer
