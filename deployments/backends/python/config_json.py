"""A model configuration as the JSON that Triton shows: snake_case names, enums by name, defaults printed."""

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

_INT64_TYPES = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """Return the configuration with 64-bit integers as numbers, which protobuf itself writes as strings."""
    fields: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _numbers(fields, config.DESCRIPTOR)
    return fields


def to_json(config: ModelConfig) -> str:
    """Return the text that a model finds in `args["model_config"]`."""
    return json.dumps(to_dict(config), separators=(",", ":"))


def from_dict(fields: dict[str, Any]) -> ModelConfig:
    """Return the configuration of a dictionary.

    Raises:
        json_format.ParseError: a field is unknown or has the wrong type.
    """
    return json_format.ParseDict(fields, ModelConfig())


def _numbers(fields: dict[str, Any], descriptor: Descriptor) -> None:
    for name, value in fields.items():
        field = descriptor.fields_by_name[name]
        message = field.message_type
        if message is None:
            if field.cpp_type in _INT64_TYPES:
                fields[name] = [int(item) for item in value] if isinstance(value, list) else int(value)
        elif message.GetOptions().map_entry:
            entry = message.fields_by_name["value"].message_type
            for item in value.values() if entry is not None else ():
                _numbers(item, entry)
        else:
            for item in value if isinstance(value, list) else (value,):
                _numbers(item, message)
