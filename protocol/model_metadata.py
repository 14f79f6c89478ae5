"""The metadata documents of KServe v2: what a server is and what a model takes and gives."""

from collections.abc import Iterable
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from protocol.datatypes import name_of

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def server_metadata(name: str, version: str) -> dict[str, Any]:
    """Return the document at `/v2`; `name` is the server's id."""
    return {"name": name, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(config: ModelConfig, versions: Iterable[int]) -> dict[str, Any]:
    """Return the document at `/v2/models/{name}` for the versions that are ready, or the one that was asked for.

    Shapes are the client's: `dims` behind the batch dimension, whatever `reshape` says.
    """
    return {
        "name": config.name,
        "versions": [str(version) for version in sorted(versions)],
        "platform": config.platform or config.backend,
        "inputs": [_tensor(tensor, config.max_batch_size) for tensor in config.input],
        "outputs": [_tensor(tensor, config.max_batch_size) for tensor in config.output],
    }


def _tensor(tensor: ModelInput | ModelOutput, max_batch_size: int) -> dict[str, Any]:
    batch = [-1] if max_batch_size > 0 else []
    return {"name": tensor.name, "datatype": name_of(tensor.data_type), "shape": batch + list(tensor.dims)}
