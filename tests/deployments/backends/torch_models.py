"""TorchScript models in temporary repositories, and batches to run through them."""

import warnings
from pathlib import Path

import pytest
from google.protobuf import text_format
from python_models import no_reply
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch
from deployments.backends.pytorch import PyTorchBackend
from protocol.errors import ServingError
from protocol.infer import InferRequest
from repository_loader.package import InstanceSpec, ModelPackage

torch = pytest.importorskip("torch")


def save(module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(path))


def load_module(root, module, inputs, outputs, *, more="max_batch_size: 8", count=1, file="model.pt", kind="CPU"):
    """Load a module, or the file that is there already, into instances; `root` is the repository."""
    tensors = [
        f'{side} {{ name: "{name}" data_type: {datatype} dims: {dims} }}'
        for side, group in (("input", inputs), ("output", outputs))
        for name, datatype, dims in group
    ]
    config = text_format.Parse(f'name: "net" backend: "pytorch" {more} {" ".join(tensors)}', ModelConfig())
    version = root / "net" / "1"
    version.mkdir(parents=True, exist_ok=True)
    if module is not None:
        save(module, version / file)
    package = ModelPackage("net", 1, config, str(version.parent), str(version), str(version / file))
    return PyTorchBackend().load(package, [InstanceSpec(f"net_{index}", kind, 0) for index in range(count)])


def fp32(*names, dims="[-1]"):
    return [(name, "TYPE_FP32", dims) for name in names]


def run(instance, *inputs, outputs=None):
    """Run requests of these inputs as one batch, and return their outputs as lists, or an error's class and message."""
    requests = [InferRequest(i, len(next(iter(i.values()))), no_reply, outputs=outputs) for i in inputs]
    batch = Batch(requests, sum(request.rows for request in requests))
    instance.execute(batch)
    assert 0 < batch.infer_start_ns <= batch.infer_end_ns
    return [_told(result) for result in batch.results]


def _told(result):
    if isinstance(result, ServingError):
        return type(result), result.message
    return {name: array.tolist() for name, array in result.outputs.items()}
