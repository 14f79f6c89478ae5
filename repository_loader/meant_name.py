"""Which name is meant by one that a configuration does not have."""

import re
from difflib import get_close_matches
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.datatypes import BY_NAME

_OTHER_DATATYPES = {
    "FLOAT16": "FP16",
    "HALF": "FP16",
    "FLOAT": "FP32",
    "FLOAT32": "FP32",
    "DOUBLE": "FP64",
    "FLOAT64": "FP64",
    "BFLOAT16": "BF16",
    "BOOLEAN": "BOOL",
}
_OTHER_FIELDS = {"dtype": "data_type", "type": "data_type", "shape": "dims"}
_PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}|\$\w+|\{\{[^}\n]*\}\}|\{%[^\n]*?%\}")
_CUTOFF = 0.8


def meant_value(value: str, names: list[str]) -> str:
    """Return a question that names the value of an enumeration that is meant, "" where none is likely.

    The values of a datatype may be called as the protocol and NumPy call them (`TYPE_BYTES`, `FP32`, `float32`).
    """
    word = value.upper()
    datatype = word.removeprefix("TYPE_")
    known = BY_NAME.get(_OTHER_DATATYPES.get(datatype, datatype))
    if known is not None and known.config_name in names:
        return f" Did you mean {known.config_name}?"
    meant = [name for name in names if name == word or name.endswith(f"_{word}")]
    meant = meant if len(meant) == 1 else get_close_matches(word, names, 1, _CUTOFF)
    return f" Did you mean {meant[0]}?" if meant else ""


def meant_field(name: str, message: str) -> str:
    """Return what to do about a field that a message, named in full, does not have, "" where nothing is likely."""
    names = _message(message).fields_by_name
    other = _OTHER_FIELDS.get(name, "")
    near = [other] if other in names else get_close_matches(name, names, 1, _CUTOFF)
    if near:
        return f' Did you mean "{near[0]}"?'
    owner = _owner(name)
    return f' It is a field of "{owner}".' if owner else ""


def placeholder_at(text: str, offset: int) -> str:
    """Return the placeholder of a template, as TensorRT-LLM's examples have them, at an offset; "" where none is."""
    match = _PLACEHOLDER.match(text, offset)
    return match[0] if match else ""


def _message(full_name: str) -> Any:
    return ModelConfig.DESCRIPTOR.file.pool.FindMessageTypeByName(full_name)


def _owner(name: str) -> str:
    """Return where in a configuration the field of this name is, "" where there is none, several, or of the whole."""
    level, seen = [("", ModelConfig.DESCRIPTOR)], set()
    while level:
        found = [path for path, message in level if name in message.fields_by_name]
        if found:
            return found[0] if len(found) == 1 else ""
        seen |= {message.full_name for _, message in level}
        level = [
            (f"{path}.{field.name}".lstrip("."), field.message_type)
            for path, message in level
            for field in message.fields
            if field.message_type is not None and field.message_type.full_name not in seen
        ]
    return ""
