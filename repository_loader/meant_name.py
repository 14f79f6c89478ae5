"""Which name is meant by one that a configuration does not have."""

import re
from collections.abc import Collection
from contextlib import suppress
from difflib import SequenceMatcher
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.datatypes import BY_NAME

_POOL: Any = ModelConfig.DESCRIPTOR.file.pool
_OTHER_DATATYPES = {
    "FLOAT16": "FP16",
    "HALF": "FP16",
    "FLOAT": "FP32",
    "FLOAT32": "FP32",
    "DOUBLE": "FP64",
    "FLOAT64": "FP64",
    "BFLOAT16": "BF16",
    "BOOLEAN": "BOOL",
    "OBJECT": "BYTES",
    "UTF8": "BYTES",
}
_OTHER_FIELDS = {"dtype": "data_type", "type": "data_type", "shape": "dims"}
_PLACEHOLDER = re.compile(r"\$\{[^}\n]{,64}\}|\$\w{1,64}|\{\{[^}\n]{,64}\}\}|\{%[^\n]{,64}?%\}")
_JSON_FIELD = re.compile(r'Message type "([^"]*)" has no field named "([^"]*)" at ')
_JSON_VALUE = re.compile(r"Invalid enum value (\S+) for enum type (\S+) at ")
_NO_DIGITS = re.compile(r"[^0-9]+")
_CUTOFF = 0.8
_LONGEST = 64


def meant_value(value: str, names: list[str]) -> str:
    """Return a question that names the value of an enumeration that is meant, "" where none is likely.

    The values of a datatype may be called as the protocol and NumPy call them (`TYPE_BYTES`, `FP32`, `float32`). None
    is meant by one with other digits: `TYPE_INT4` is no misspelt `TYPE_INT64`.
    """
    word = value.upper()
    datatype = word.removeprefix("TYPE_")
    known = BY_NAME.get(_OTHER_DATATYPES.get(datatype, datatype))
    if known is not None and known.config_name in names:
        return f" Did you mean {known.config_name}?"
    ending = [name for name in names if name == word or name.endswith(f"_{word}")]
    digits = _NO_DIGITS.sub("", word)
    near = [name for name in names if _NO_DIGITS.sub("", name) == digits]
    meant = ending[0] if len(ending) == 1 else _nearest(word, near)
    return f" Did you mean {meant}?" if meant else ""


def meant_field(name: str, message: str) -> str:
    """Return what to do about a field that a message, named in full, does not have, "" where nothing is likely."""
    names = _POOL.FindMessageTypeByName(message).fields_by_name
    other = _OTHER_FIELDS.get(name, "")
    meant = other if other in names else _nearest(name, names)
    if meant:
        return f' Did you mean "{meant}"?'
    owner = _owner(name)
    return f' It is a field of "{owner}".' if owner else ""


def meant_in_json(message: str) -> str:
    """Return what `meant_field` or `meant_value` says of a complaint of protobuf's about JSON."""
    field, value = _JSON_FIELD.search(message), _JSON_VALUE.search(message)
    with suppress(KeyError):  # a text of the client's may read like a complaint about a type that there is not
        if field:
            return meant_field(field[2], field[1])
        if value:
            return meant_value(value[1], enum_values(value[2]))
    return ""


def enum_values(enumeration: str) -> list[str]:
    """Return the values of an enumeration, which is named in full."""
    return list(_POOL.FindEnumTypeByName(enumeration).values_by_name)


def placeholder_at(text: str, offset: int) -> str:
    """Return the placeholder of a template, as TensorRT-LLM's examples have them, at an offset; "" where none is."""
    match = _PLACEHOLDER.match(text, offset)
    return match[0] if match else ""


def _nearest(word: str, names: Collection[str]) -> str:
    """Return the name that is most like a word, "" where none is like it, or two equally.

    A word that a client makes up at length is like none.
    """
    if len(word) > _LONGEST:
        return ""
    ratios = {name: SequenceMatcher(None, name, word).ratio() for name in names}
    best = max(ratios.values(), default=0.0)
    nearest = [name for name, ratio in ratios.items() if ratio == best]
    return nearest[0] if best >= _CUTOFF and len(nearest) == 1 else ""


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
