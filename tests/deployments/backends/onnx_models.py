"""Small ONNX models, and the packages that tests load them from."""

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch
from deployments.backends.onnxruntime import OnnxRuntimeBackend
from protocol.infer import InferRequest
from repository_loader.package import InstanceSpec, ModelPackage

_LISTS = ("axes", "perm")
CPU = [InstanceSpec("m_0", "CPU", 0), InstanceSpec("m_1", "CPU", 0)]


def tensor(text):
    """Return a graph's input or output from `name:FLOAT:n,2`; nothing after the last colon is a scalar, ? any shape."""
    name, kind, dims = text.split(":")
    shape = None if dims == "?" else [int(dim) if dim.lstrip("-").isdigit() else dim for dim in dims.split(",") if dim]
    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)


def write_model(path, nodes, inputs, outputs, initializers=()):
    """Write a model of nodes like `Add X,X Y` or `Transpose X Y perm=1,0` and tensors like `X:FLOAT:n,2`."""
    made = []
    for node in nodes:
        operator, takes, gives, *attributes = node.split()
        pairs = [each.split("=") for each in attributes]
        numbers = {name: [int(each) for each in value.split(",")] for name, value in pairs}
        given = {name: value if name in _LISTS else value[0] for name, value in numbers.items()}
        made.append(helper.make_node(operator, takes.split(","), gives.split(","), **given))
    values = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in dict(initializers).items()]
    graph = helper.make_graph(made, "g", [tensor(each) for each in inputs], [tensor(each) for each in outputs], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(path))
    return str(path)


def package_of(path, text, settings=None):
    config = text_format.Parse('name: "m" backend: "onnxruntime" ' + text, ModelConfig())
    return ModelPackage("m", 1, config, "", "", str(path), settings or {})


def load(path, text, specs=CPU):
    return OnnxRuntimeBackend().load(package_of(path, text), specs)


def run(instance, *requests):
    """Run requests, each a dict of inputs or an InferRequest, as one batch, and return the results."""
    made = [each if isinstance(each, InferRequest) else request_of(**each) for each in requests]
    batch = Batch(made, sum(request.rows for request in made))
    instance.execute(batch)
    return batch.results


def request_of(outputs=None, rows=None, **inputs):
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    first = next(iter(arrays.values()))
    return InferRequest(arrays, rows or first.shape[0], lambda request, result: None, outputs=outputs)


def io(name, kind, data_type, dims, extra=""):
    """Return one input or output of a configuration."""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [{dims}] {extra} }} '


DOUBLING = "max_batch_size: 8 " + io("X", "input", "FP32", 2) + io("Y", "output", "FP32", 2)
"""Of the graph that the fixture `doubling` writes."""
