"""The module that models import as `triton_python_backend_utils`.

Names and behaviour are those of Triton's Python backend; calls that would need another model are refused for now.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from deployments.backends.python.byte_tensor import deserialize_bytes_tensor, serialize_byte_tensor
from deployments.backends.python.errors import TritonError, TritonModelException
from deployments.backends.python.logger import Logger
from deployments.backends.python.metric import Metric, MetricFamily
from deployments.backends.python.model_config import ModelConfig
from deployments.backends.python.model_module import PB_UTILS_NAMES, calling_model
from deployments.backends.python.request import InferenceRequest, InferenceTrace, PreferredMemory
from deployments.backends.python.response import InferenceResponse
from deployments.backends.python.response_sender import ResponseSender
from deployments.backends.python.tensor import Tensor
from protocol.datatypes import BY_CONFIG_NAME

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "ResponseSender",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "serialize_byte_tensor",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = PreferredMemory.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = PreferredMemory.TRITONSERVER_MEMORY_GPU

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


class ResponseIterator:
    """The responses of a call to a decoupled model; there are none while calls are not offered."""

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        raise StopIteration

    def cancel(self) -> None:
        """Give the call up."""


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


def triton_to_numpy_type(data_type: int) -> type[Any]:
    """Return the NumPy type of a datatype's number."""
    return TRITON_TO_NUMPY_TYPE[data_type]


def numpy_to_triton_type(data_type: type[Any]) -> int:
    """Return the datatype's number of a NumPy type."""
    return NUMPY_TO_TRITON_TYPE[data_type]


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


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> NoReturn:
    """Load a model of this server; not offered yet."""
    raise TritonModelException("load_model is not available")


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    """Unload a model of this server; not offered yet."""
    raise TritonModelException("unload_model is not available")


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    """Return whether a model of this server is ready; not offered yet."""
    raise TritonModelException("is_model_ready is not available")


def _by_name(model_config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    return next((properties for properties in model_config.get(kind, ()) if properties["name"] == name), None)


for _name in PB_UTILS_NAMES:
    sys.modules[_name] = sys.modules[__name__]
