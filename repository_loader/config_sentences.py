"""A configuration as text, with what each field does here: the sentences of the tables that loading uses."""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.ensemble_conditions import CONDITION_KEYS, DEFAULT, WHEN
from repository_loader.field_rules import FIELDS
from repository_loader.overrides import OVERRIDES, PREFIX, SHORT
from repository_loader.parameters import EVERY_BACKEND, PARAMETERS

MAX_LINES: Final = 2000
_GROUPS: Final = {
    "input": "a tensor that a request brings",
    "output": "a tensor that an answer has",
    "instance_group": "copies of the model that run side by side, and on what they run",
    "dynamic_batching": "requests that wait run together as one batch",
    "sequence_batching": "requests that belong together go to the same instance, one after the other",
    "ensemble_scheduling": "the models that a request passes, and the tensors between them",
    "ensemble_scheduling.step": "one model on the way",
    "optimization": "what the backend may do to be faster",
    "response_cache": "whether answers are kept for requests that are the same",
    "instance_group.rate_limiter": "resources that an instance needs while it runs",
}
"""Fields that the table of rules has no row for, as it has rows for all that is in them."""
Line = tuple[str, str]
"""A line of text and the sentence on it, "" where the line above has it."""


def config_sentences(config: ModelConfig) -> list[Line]:
    """Return the fields that are set, at most `MAX_LINES` lines; they parse as config.pbtxt."""
    lines: list[Line] = []
    for line in _fields(config, "", 0, config.backend):
        if len(lines) == MAX_LINES:
            lines.append(("# …", "there is more: see /v2/models/<model>/config"))
            break
        lines.append(line)
    return lines


def _fields(message: Message, path: str, depth: int, backend: str) -> Iterator[Line]:
    indent = "  " * depth
    for field, value in message.ListFields():
        here = f"{path}.{field.name}" if path else field.name
        meaning = _meaning(here)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in sorted(value):
                yield from _entry(field, key, value[key], here, depth, backend)
        elif field.message_type is not None:
            for each in value if isinstance(value, list) or field.is_repeated else (value,):
                inner = list(_fields(each, here, depth + 1, backend))
                yield f"{indent}{field.name} {{" + ("" if inner else " }"), meaning
                yield from inner
                if inner:
                    yield f"{indent}}}", ""
        elif field.is_repeated:
            yield f"{indent}{field.name}: [ {', '.join(_text(field, each) for each in value)} ]", meaning
        else:
            yield f"{indent}{field.name}: {_text(field, value)}", meaning


def _entry(field: FieldDescriptor, key: Any, value: Any, path: str, depth: int, backend: str) -> Iterator[Line]:
    indent = "  " * depth
    meaning = parameter_meaning(str(key), backend) if path == "parameters" else _meaning(path)
    key_text = _text(field.message_type.fields_by_name["key"], key)
    if isinstance(value, Message):
        inner = " ".join(text.strip() for text, _ in _fields(value, path, 0, backend))
        yield f"{indent}{field.name} {{ key: {key_text} value {{ {inner} }} }}", meaning
    else:
        shown = _text(field.message_type.fields_by_name["value"], value)
        yield f"{indent}{field.name} {{ key: {key_text} value: {shown} }}", meaning


def _text(field: FieldDescriptor, value: Any) -> str:
    out = text_format.TextWriter(as_utf8=True)
    text_format.PrintFieldValue(field, value, out, as_utf8=True, as_one_line=True)
    return str(out.getvalue())


def _meaning(path: str) -> str:
    """Return the sentence on a field; "" where that on the field around it says all."""
    rule = FIELDS.get(path)
    if rule is None:
        return _GROUPS.get(path, "")
    return (rule.meaning or rule.because).replace("see above", "see docs/configuration.md")


def parameter_meaning(key: str, backend: str) -> str:
    """Return the sentence on a key of `parameters`; "" for one that only its model knows."""
    own = f"{PREFIX}{key}" if key.startswith(SHORT) else key
    if own.startswith((WHEN, DEFAULT)):
        return next(text for name, text in CONDITION_KEYS.items() if own.startswith(name.partition("<")[0]))
    if own.startswith(PREFIX):
        return OVERRIDES.get(own.removeprefix(PREFIX), "")
    known = (*EVERY_BACKEND, *PARAMETERS.get(backend, ()))
    return next((each.meaning for each in known if each.name == key), "")
