"""Which ONNX models run their batches in a few sizes on a GPU, each in a session of its own, and what that takes.

The plan counts the sessions' weights; `deployments/backends/sized_sessions.py` runs them.
"""

import os
from functools import lru_cache
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import traits_of
from repository_loader.onnx_graph import OnnxFileError, read_onnx_graph

LARGEST_WEIGHTS_BYTES: Final = 256 << 20
WEIGHTS_BYTES_IN_ALL: Final = 1 << 30
_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose", "FusedConv"})
_MEMORY_LIMIT: Final = "gpu_mem_limit"
_MOST_SIZES: Final = 12
_SMALL: Final = (1, 4, 8)
"""A GPU takes hardly longer for a few rows than for one."""


def batch_sizes(config: ModelConfig, path: str) -> list[int]:
    """Return 1, 4, 8, 16, 24, 32, 48, 64 and so on up to `max_batch_size`, with it and what is preferred.

    They are fewer, evenly left out but for the largest, where so many sessions would hold the weights too often, and
    where more than 12 are preferred.
    """
    largest = config.max_batch_size
    found = {*_SMALL, *config.dynamic_batching.preferred_batch_size}
    power = 2 * _SMALL[-1]
    while power < largest:
        found |= {power, power + power // 2}
        power *= 2
    sizes = sorted({size for size in found if 0 < size < largest} | {largest})
    count = min(len(sizes), _MOST_SIZES, max(1, WEIGHTS_BYTES_IN_ALL // max(1, weights_bytes(path))))
    return [sizes[(index + 1) * len(sizes) // count - 1] for index in range(count)]


def may_fill(config: ModelConfig, path: str) -> bool:
    """Whether batches of an ONNX model on a GPU run in a few sizes: of rows that do not depend on each other, which
    `dynamic_batching` says, without TensorRT, with convolutions, of a number of rows that is not built in, with weights
    that are not too large, and where no `gpu_mem_limit` is set, which each session would have to itself.
    """
    if not config.max_batch_size or not config.HasField("dynamic_batching") or _MEMORY_LIMIT in config.parameters:
        return False
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if any(each.name == "tensorrt" or _MEMORY_LIMIT in each.parameters for each in accelerators):
        return False
    try:
        status = os.stat(model_file(path))
        return weights_bytes(path) <= LARGEST_WEIGHTS_BYTES and _convolves(
            model_file(path), status.st_mtime_ns, status.st_size
        )
    except (OSError, OnnxFileError):
        return False  # loading it says what is wrong


def further_weights_bytes(config: ModelConfig, path: str) -> int:
    """Return what the sessions of a model on a GPU take beyond the first."""
    if traits_of(config).name != "onnxruntime" or not may_fill(config, path):
        return 0
    try:
        return (len(batch_sizes(config, path)) - 1) * weights_bytes(path)
    except OSError:
        return 0  # its folder has just gone


def weights_bytes(path: str) -> int:
    """Return the size of the model's file with those beside it, where its weights may lie."""
    folder = os.path.dirname(model_file(path))
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())


def model_file(path: str) -> str:
    """Return the file of a model that may be a folder."""
    return os.path.join(path, "model.onnx") if os.path.isdir(path) else path


@lru_cache(256)
def _convolves(path: str, changed_ns: int, size_bytes: int) -> bool:
    """Whether the file, as it was changed last, has convolutions of rows whose number is not built in."""
    del changed_ns, size_bytes
    graph = read_onnx_graph(path)
    return all(tensor.dims[:1] == (-1,) for tensor in graph.inputs) and not _CONVOLUTIONS.isdisjoint(graph.operators)
