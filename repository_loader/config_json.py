"""A configuration as the JSON that `GET …/config` answers, and back.

Source: core's ModelConfigToJson: every field without presence is printed, names are snake_case, enums are names, 64-bit
integers are numbers except in three places, and whole numbers have no fraction (`1`, not `1.0`).
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader import lenient_json
from repository_loader.config_text import MAX_CONFIG_BYTES
from repository_loader.enum_values import unknown_enum_values
from repository_loader.leniency import normalise_spellings
from repository_loader.meant_name import meant_in_json

logger = logging.getLogger(__name__)

_STRINGS_STAY = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)

_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(("false", "f", "no", "n", "0"), False)
"""What protobuf's JSON parser in C++ reads where a text stands for a bool."""
_EXPONENT_FROM = 1_000_000
_MAX_DEPTH = 64
MAX_ELEMENTS = 1 << 16
"""A text of few bytes may have many elements, and each that is printed takes a hundred."""


class ConfigJsonError(Exception):
    """The JSON is no model configuration; the message is protobuf's."""


def config_to_json(config: ModelConfig) -> str:
    """Return the body that the configuration endpoint answers."""
    return json.dumps(config_to_dict(config), separators=(",", ":"), ensure_ascii=False)


def config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """Return the object that the configuration endpoint prints."""
    printed: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _as_triton(printed, ModelConfig.DESCRIPTOR)


def check_size(document: str) -> None:
    """Raise ConfigJsonError if a configuration as JSON is longer than its file may be, or has many elements."""
    # A character takes a byte at least: what has more of them is not encoded to be counted.
    if len(document) > MAX_CONFIG_BYTES or len(document.encode("utf-8", "surrogatepass")) > MAX_CONFIG_BYTES:
        raise ConfigJsonError(f"the configuration has more than the allowed {MAX_CONFIG_BYTES} bytes")
    if sum(map(document.count, ",[{")) > MAX_ELEMENTS:
        raise ConfigJsonError(f"the configuration has more than the allowed {MAX_ELEMENTS} elements")


def config_from_json(document: str | Mapping[str, Any]) -> ModelConfig:
    """Read the JSON form of a configuration, as a load request sends it.

    As for Triton's JSON parser, names may lack quotes, texts may have single ones, lists and objects a comma at their
    end; enum names may be in any case, a bool may be a text, and one value stands for a list of it. Spellings that mean
    something in a file mean it here, with a warning in the log. The largest take some half a second.

    Raises:
        ConfigJsonError: it is no JSON, or has an unknown field or a value of the wrong type, or is too large.
    """
    if isinstance(document, str):
        check_size(document)
    try:
        values = lenient_json.loads(document) if isinstance(document, str) else document
        json.dumps(values, ensure_ascii=False).encode()  # refuses halves of characters, at which protobuf fails
        if not isinstance(values, Mapping):
            raise ConfigJsonError("a model configuration must be a JSON object")
        values = _as_protobuf(values, ModelConfig.DESCRIPTOR, 0)
        config = json_format.ParseDict(values, ModelConfig(), max_recursion_depth=_MAX_DEPTH)
    except (json_format.ParseError, ValueError, OverflowError, RecursionError) as error:
        message = str(error).partition("\n")[0]  # the rest lists the fields that there are
        meant = meant_in_json(message)
        raise ConfigJsonError(f"{message.rstrip('.')}.{meant}" if meant else message) from error
    for fault in unknown_enum_values(config):
        raise ConfigJsonError(fault.message)
    for fault in normalise_spellings(config):
        logger.warning("configuration of model '%s' as JSON: %s", config.name, fault.message)
    return config


def _as_protobuf(values: Any, descriptor: Any, depth: int) -> Any:
    """Return a copy with enum names in capitals, bools for texts, and lists of one; what fits no field is left."""
    if not isinstance(values, Mapping) or depth > _MAX_DEPTH:
        return values
    copy = dict(values)
    for field in descriptor.fields:
        for name in {field.name, field.json_name} & copy.keys():
            value = copy[name]
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            if field.is_repeated and not is_map and _is_one(value, field):
                copy[name] = value = [value]
            if field.enum_type is not None:
                copy[name] = [_capital(item) for item in value] if isinstance(value, list) else _capital(value)
            elif field.cpp_type == field.CPPTYPE_BOOL:
                copy[name] = [_truth(item) for item in value] if isinstance(value, list) else _truth(value)
            elif field.message_type is None:
                continue
            elif is_map:
                entry = field.message_type.fields_by_name["value"].message_type
                if entry is not None and isinstance(value, Mapping):
                    copy[name] = {key: _as_protobuf(item, entry, depth + 1) for key, item in value.items()}
            elif isinstance(value, list):
                copy[name] = [_as_protobuf(item, field.message_type, depth + 1) for item in value]
            else:
                copy[name] = _as_protobuf(value, field.message_type, depth + 1)
    return copy


def _is_one(value: Any, field: Any) -> bool:
    """Whether a value may be an element of a list; protobuf would take an empty string for an empty message."""
    if field.message_type is not None:
        return isinstance(value, Mapping)
    return value is not None and not isinstance(value, list | Mapping)


def _capital(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _truth(value: Any) -> Any:
    return _TRUTHS.get(value.lower(), value) if isinstance(value, str) else value


def _as_triton(printed: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """Return what protobuf prints in the order of the fields, with the numbers as Triton's."""
    ordered: dict[str, Any] = {}
    for field in descriptor.fields:
        value = printed.get(field.name)
        if value is None:
            continue
        if field.message_type is None:
            if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) and field.full_name not in _STRINGS_STAY:
                value = [int(item) for item in value] if field.is_repeated else int(value)
            elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
                value = [_whole(item) for item in value] if field.is_repeated else _whole(value)
        elif field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"].message_type
            if entry is not None:
                value = {key: _as_triton(item, entry) for key, item in value.items()}
        elif field.is_repeated:
            value = [_as_triton(item, field.message_type) for item in value]
        else:
            value = _as_triton(value, field.message_type)
        ordered[field.name] = value
    return ordered


def _whole(value: Any) -> Any:
    """Return a whole number as an integer; protobuf in C++ prints it so unless it is large enough for an exponent."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXPONENT_FROM else value
