"""Asks a model for what its configuration leaves out: the process that may do so depends on its backend."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends import onnxruntime_shapes
from deployments.backends.python import auto_complete as python
from repository_loader.backend_traits import traits_of

TIMEOUT_S = python.TIMEOUT_S


def complete(config: ModelConfig, model_path: str, version_path: str, file_path: str) -> ModelConfig:
    """Return what the model answers, as `ModelCompleter` has it.

    Raises:
        ModelLoadError: with the model's reason.
    """
    if traits_of(config).name == "onnxruntime":
        return onnxruntime_shapes.work_out(config, model_path, file_path, TIMEOUT_S)
    return python.complete(config, model_path, version_path, file_path)
