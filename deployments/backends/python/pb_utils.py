"""The module that models import as `triton_python_backend_utils`.

Names and behaviour are those of Triton's Python backend.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from deployments.backends.python import bls
from deployments.backends.python.bls import ResponseIterator
from deployments.backends.python.byte_tensor import deserialize_bytes_tensor, serialize_byte_tensor
from deployments.backends.python.errors import TritonError, TritonModelException
from deployments.backends.python.logger import Logger
from deployments.backends.python.metric import COUNTER, GAUGE, HISTOGRAM, Metric, MetricFamily, MetricKind
from deployments.backends.python.model_config import ModelConfig
from deployments.backends.python.model_module import PB_UTILS_NAMES, calling_model, only_model
from deployments.backends.python.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from deployments.backends.python.response import InferenceResponse
from deployments.backends.python.response_sender import ResponseSender
from deployments.backends.python.server import ModelServer
from deployments.backends.python.tensor import Tensor
from deployments.backends.python.text import text_argument
from protocol.datatypes import BY_CONFIG_NAME
from protocol.errors import ServingError

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "NUMPY_TO_TRITON_TYPE",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "TRITON_TO_NUMPY_TYPE",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "ResponseSender",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
InferenceResponseSender = ResponseSender

TRITON_STRING_TO_NUMPY: dict[str, type[Any]] = {
    name: np.bool_ if name == "TYPE_BOOL" else datatype.numpy.type
    for name, datatype in BY_CONFIG_NAME.items()
    if name != "TYPE_BF16"
}
TRITON_TO_NUMPY_TYPE: dict[int, type[Any]] = {
    BY_CONFIG_NAME[name].enum: numpy_type for name, numpy_type in TRITON_STRING_TO_NUMPY.items()
}
NUMPY_TO_TRITON_TYPE: dict[type[Any], int] = {
    **{numpy_type: number for number, numpy_type in TRITON_TO_NUMPY_TYPE.items()},
    bool: BY_CONFIG_NAME["TYPE_BOOL"].enum,
    np.bytes_: BY_CONFIG_NAME["TYPE_STRING"].enum,
    np.str_: BY_CONFIG_NAME["TYPE_STRING"].enum,
}


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return the input of a request, None if it was not sent."""
    return inference_request.input_tensor(name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return the output of a response, None if it has none of this name."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the properties of an input in a parsed model configuration, None if it has none of this name."""
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the properties of an output in a parsed model configuration, None if it has none of this name."""
    return _by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return whether a parsed model configuration is of a decoupled model."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> type[Any] | None:
    """Return the NumPy type of a datatype's number, None if it has none (BF16)."""
    return TRITON_TO_NUMPY_TYPE.get(data_type)


def numpy_to_triton_type(data_type: type[Any] | np.dtype[Any]) -> int | None:
    """Return the datatype's number of a NumPy type, or of an array's `dtype`, None if it has none."""
    return NUMPY_TO_TRITON_TYPE.get(data_type.type if isinstance(data_type, np.dtype) else data_type)


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """Return the NumPy type of a datatype as config.pbtxt names it."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def get_model_dir() -> str:
    """Return the folder of the calling model's version.

    Raises:
        TritonModelException: no code of a model is on the stack.
    """
    model = calling_model()
    if model is None:
        raise TritonModelException("get_model_dir is only supported in the code of a model.")
    return model.version_path


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model of this server, or load it again; blocks until it is ready.

    Args:
        model_name: a model of the repository.
        config: JSON that takes the place of its config.pbtxt.
        files: what takes the place of its files, by `file:<path>`.

    Raises:
        TypeError: the name is no text, or the content of a file is no `bytes`.
        TritonModelException: it does not load, or the server is not in explicit model control mode.
    """
    name = text_argument("'model_name'", model_name)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{name}', files should be a dictionary of file paths and file contents"
        )
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise TypeError(f"the content of '{path}' must be bytes, found type '{type(content)}'.")
    override = text_argument("'config'", config) if config is not None else ""
    with _told_as_exception():
        _server().load_model(name, override or None, files or {})


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model of this server; blocks until no more requests go to it. Raises as `load_model`."""
    name = text_argument("'model_name'", model_name)
    with _told_as_exception():
        _server().unload_model(name, unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model of this server, or one version of it, takes requests; blocks.

    Raises:
        TypeError: the name or the version is no text.
        TritonModelException: the version is not a number.
    """
    name, version = text_argument("'model_name'", model_name), text_argument("'model_version'", model_version)
    if version and not version.isdecimal():
        raise TritonModelException(f"failed to get model version from specified version string '{version}'")
    with _told_as_exception():
        return _server().is_model_ready(name, int(version or -1))


def _server() -> ModelServer:
    module = calling_model() or only_model()
    if module is None or module.server is None:
        raise TritonModelException("Models cannot be loaded, unloaded or asked for in this function.")
    if module.forked:
        raise TritonModelException(bls.NOT_FORKED)
    module.blocks_loop()
    if not module.server.may_wait():
        raise TritonModelException(bls.NOT_ON_LOOP)
    return module.server


@contextmanager
def _told_as_exception() -> Iterator[None]:
    try:
        yield
    except ServingError as error:
        raise TritonModelException(error.message) from None


def _by_name(model_config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    return next((properties for properties in model_config.get(kind, ()) if properties["name"] == name), None)


for _name in PB_UTILS_NAMES:
    sys.modules[_name] = sys.modules[__name__]
