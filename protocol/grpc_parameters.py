"""Typed parameters: of a ModelInferRequest, of its inputs and outputs, and of a response."""

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.errors import Internal, InvalidArgument
from protocol.infer import SEQUENCE_END, SEQUENCE_START, Parameter
from protocol.limits import Limits
from protocol.request_parameters import RequestParameters, correlation_id_too_long
from protocol.shared_memory import RegionRange

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"

_CUSTOM = ("int64_param", "bool_param", "string_param", "double_param")
_MAX_INT64 = 2**63 - 1
_MAX_UINT64 = 2**64 - 1
_MAX_CLASSES = 2**31 - 1


class GrpcParameters(RequestParameters):
    """What a request's parameters say; `empty_final` is whether the end of a stream without outputs is to be told."""

    __slots__ = ("empty_final",)

    def __init__(self) -> None:
        super().__init__()
        self.empty_final = False


def read_parameters(parameters: Mapping[str, Any], limits: Limits) -> GrpcParameters:
    """Read the parameters of a request: InferParameters by key.

    Raises:
        InvalidArgument: a key has the wrong type or is Triton's own, there are too many.
    """
    found = GrpcParameters()
    if len(parameters) > limits.max_parameters:
        raise InvalidArgument(f"request has {len(parameters)} parameters, more than {limits.max_parameters}")
    for key, parameter in parameters.items():
        _read(found, key, parameter, limits)
    return found


def _read(found: GrpcParameters, key: str, parameter: Any, limits: Limits) -> None:
    if key == "sequence_id":
        found.sequence_id = _sequence_id(parameter, limits)
    elif key == "sequence_start":
        found.flags |= SEQUENCE_START if _typed(parameter, key, "bool_param") else 0
    elif key == "sequence_end":
        found.flags |= SEQUENCE_END if _typed(parameter, key, "bool_param") else 0
    elif key == "priority":
        found.priority = _not_negative(_typed(parameter, key, "int64_param", "uint64_param"), key)
    elif key == "timeout":
        found.timeout_us = _not_negative(_typed(parameter, key, "int64_param"), key)
    elif key == EMPTY_FINAL_RESPONSE:
        found.empty_final = _typed(parameter, key, "bool_param")
    elif key.startswith("triton_"):
        raise InvalidArgument(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
        )
    else:
        if found.custom is None:
            found.custom = {}
        found.custom[key] = _custom(parameter, key)


def _sequence_id(parameter: Any, limits: Limits) -> int | str:
    value: int | str = _typed(parameter, "sequence_id", "int64_param", "string_param")
    if isinstance(value, int):
        return value & _MAX_UINT64  # clients put ids from 2^63 on, which are unsigned, into the field as they are
    if len(value.encode()) > limits.max_correlation_id_bytes:
        raise correlation_id_too_long(limits)
    return value


def _typed(parameter: Any, key: str, *kinds: str) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in kinds:
        raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {' or '.join(kinds)}.")
    return getattr(parameter, kind)


def _not_negative(value: int, key: str) -> int:
    if value < 0:
        raise InvalidArgument(f"invalid value for '{key}', expected value >= 0.")
    return value


def _custom(parameter: Any, key: str) -> Parameter:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in _CUSTOM:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
        )
    value: Parameter = getattr(parameter, kind)
    return value


def request_fields(parameters: Mapping[str, str]) -> bytes:
    """Return fields that give a serialised ModelInferRequest, when they are put behind it, these parameters too."""
    message = ModelInferRequest()
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    fields: bytes = message.SerializeToString()
    return fields


def read_region(tensor: Any) -> RegionRange | None:
    """Return the range of shared memory that the parameters of an input or output name, None if they name none.

    Raises:
        InvalidArgument: one of them is missing, or has the wrong type.
    """
    parameters = tensor.parameters
    if not parameters:
        return None
    region = _of_tensor(tensor, "shared_memory_region", "string_param")
    offset = _of_tensor(tensor, "shared_memory_offset", "int64_param", region is not None)
    byte_size = _of_tensor(tensor, "shared_memory_byte_size", "int64_param", region is not None)
    if region is None:
        return None
    if byte_size is None:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    offset = offset or 0
    if offset < 0:
        raise InvalidArgument(f"Invalid offset for shared memory region: '{region}'")
    if byte_size < 0:
        raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
    return RegionRange(region, offset, byte_size)


def _of_tensor(tensor: Any, key: str, kind: str, has_region: bool = True) -> Any:
    if key not in tensor.parameters:
        return None
    if not has_region:
        raise InvalidArgument(
            f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
        )
    parameter = tensor.parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected {kind}.")
    return getattr(parameter, kind)


def read_class_count(tensor: Any) -> int:
    """Return how many classes an output is to become, 0 if it stays what it is.

    Raises:
        InvalidArgument: the parameter has the wrong type or makes no sense.
    """
    if "classification" not in tensor.parameters:
        return 0
    parameter = tensor.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
    count: int = parameter.int64_param
    if count <= 0:
        raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
    if count > _MAX_CLASSES:
        raise InvalidArgument(f"invalid value for 'classification' parameter, expected <= {_MAX_CLASSES}")
    return count


def write_parameters(target: Any, parameters: Mapping[str, Parameter]) -> None:
    """Put the parameters of a response into a map of InferParameters, each with its type.

    Raises:
        Internal: a value has no type there.
    """
    for key, value in parameters.items():
        try:
            setattr(target[key], _kind(value), value)
        except (TypeError, ValueError):
            raise Internal("a response parameter is not a bool, integer, float or string") from None


def _kind(value: Parameter) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "int64_param" if value <= _MAX_INT64 else "uint64_param"
    if isinstance(value, float):
        return "double_param"
    return "string_param"
