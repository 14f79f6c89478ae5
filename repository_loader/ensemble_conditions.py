"""When an ensemble's steps run, and what tensors are where they did not: `eagleray.when.*`, `eagleray.default.*`.

Both are keys of an ensemble's `parameters`. A condition is `[any|all] <tensor> <comparison> <value>`, a default is a
value or the name of another tensor; nothing else is understood.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.datatypes import BY_ENUM, DataType
from repository_loader.findings import Fault

WHEN: Final = "eagleray.when."
DEFAULT: Final = "eagleray.default."
CONDITION_KEYS: Final = {
    f"{WHEN}<step>": "a step of an ensemble, named by its model or its number from 0, runs only when this is so: "
    "`<tensor> <comparison> <value>`, with `all` in front where it must be so of every element and not just of any",
    f"{DEFAULT}<tensor>": "what a tensor of an ensemble is when the step that makes it is skipped: "
    "a value, or another tensor",
}
"""The keys and what each says."""

Value = bool | int | float | str

_CONDITION = re.compile(r"(?:(any|all)\s+)?([^\s<>=!]+)\s*(==|!=|<=|>=|<|>)\s*(\S.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_TEXT = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_NAME = re.compile(r"[^\s<>=!'\"]+")


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison with every element of an ensemble tensor: it holds when it is so for any, or (`every`) for all."""

    tensor: str
    comparison: str
    value: Value
    every: bool


@dataclass(frozen=True, slots=True)
class Default:
    """What stands for a tensor: another `tensor`, or, where that is "", every element is `value`."""

    tensor: str
    value: Value = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of steps by their numbers, and the defaults of tensors by their names."""

    when: dict[int, Condition] = field(default_factory=dict)
    defaults: dict[str, Default] = field(default_factory=dict)

    def guards(self, output_map: Mapping[str, str], index: int) -> set[str]:
        """Return the tensors that a step needs beside its inputs: for its condition, and to stand for its outputs."""
        names = {self.defaults[tensor].tensor for tensor in output_map.values() if tensor in self.defaults}
        if index in self.when:
            names.add(self.when[index].tensor)
        return names - {""}


class ConditionError(Exception):
    """A key that cannot be read; `key` is the one in `parameters`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, message)
        self.key = key
        self.message = message

    @property
    def fault(self) -> Fault:
        """Return it as a fault of the configuration."""
        return Fault(f'parameters["{self.key}"]', self.message)


def read_conditions(config: ModelConfig) -> Conditions:
    """Read the conditions and defaults of an ensemble.

    Raises:
        ConditionError: a value is not understood, or a step or tensor is none of the ensemble's.
    """
    conditions = Conditions()
    for key in sorted(config.parameters):
        text = config.parameters[key].string_value.strip()
        if key.startswith(WHEN):
            index = _step(config, key)
            if index in conditions.when:
                raise ConditionError(key, f"parameter '{key}' of {config.name} is a second condition of step {index}")
            conditions.when[index] = _condition(config, key, text)
        elif key.startswith(DEFAULT):
            conditions.defaults[_made(config, key)] = _default(config, key, text)
    known = {tensor.name for tensor in config.input}
    known.update(tensor for step in config.ensemble_scheduling.step for tensor in step.output_map.values())
    for key, tensor in _named(config, conditions):
        if tensor not in known:
            raise ConditionError(
                key,
                f"parameter '{key}' of {config.name} names tensor '{tensor}', which is no input and made by no step",
            )
    return conditions


def check_condition_types(config: ModelConfig, types: Mapping[str, int]) -> Iterator[Fault]:
    """Yield a fault for each condition and default that does not go with the types of its tensors."""
    conditions = read_conditions(config)
    for index, condition in conditions.when.items():
        datatype = BY_ENUM[types[condition.tensor]]
        ordered = datatype.name in ("BOOL", "BYTES") and condition.comparison not in ("==", "!=")
        if ordered or not _comparable(datatype.name, condition.value):
            yield _mismatch(config, _when_key(config, index), condition.tensor, datatype)
    for name, default in conditions.defaults.items():
        datatype = BY_ENUM[types[name]]
        if not (default.tensor or _representable(datatype.name, default.value)):
            yield _mismatch(config, DEFAULT + name, name, datatype)


def _mismatch(config: ModelConfig, key: str, tensor: str, datatype: DataType) -> Fault:
    text = config.parameters[key].string_value
    what = f"says {text!r}, which does not go with tensor '{tensor}' of {datatype.config_name}"
    return Fault(f'parameters["{key}"]', f"parameter '{key}' of {config.name} {what}")


def _named(config: ModelConfig, conditions: Conditions) -> Iterator[tuple[str, str]]:
    for index, condition in conditions.when.items():
        yield _when_key(config, index), condition.tensor
    for name, default in conditions.defaults.items():
        if default.tensor:
            yield DEFAULT + name, default.tensor


def _when_key(config: ModelConfig, index: int) -> str:
    key = f"{WHEN}{index}"
    return key if key in config.parameters else WHEN + config.ensemble_scheduling.step[index].model_name


def _step(config: ModelConfig, key: str) -> int:
    name = key.removeprefix(WHEN)
    steps = config.ensemble_scheduling.step
    found = [index for index, step in enumerate(steps) if step.model_name == name]
    if len(found) > 1:
        numbers = ", ".join(map(str, found))
        raise ConditionError(key, f"parameter '{key}' of {config.name} may be any of the steps {numbers}: use a number")
    if not found and name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(steps):
        found = [int(name)]
    if not found:
        raise ConditionError(key, f"parameter '{key}' of {config.name} names step '{name}', which does not exist")
    return found[0]


def _made(config: ModelConfig, key: str) -> str:
    name = key.removeprefix(DEFAULT)
    if not any(name in step.output_map.values() for step in config.ensemble_scheduling.step):
        raise ConditionError(key, f"parameter '{key}' of {config.name} names tensor '{name}', which no step makes")
    return name


def _condition(config: ModelConfig, key: str, text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    value = _value(match[4]) if match else None
    if match is None or value is None:
        raise ConditionError(
            key,
            f"parameter '{key}' of {config.name} must be [any|all] <tensor> <comparison> <value>, with a comparison of "
            "== != < <= > >= and a value that is a number, true, false or 'text'",
        )
    return Condition(match[2], match[3], value, match[1] == "all")


def _default(config: ModelConfig, key: str, text: str) -> Default:
    value = _value(text)
    if value is not None:
        return Default("", value)
    if not _NAME.fullmatch(text):
        raise ConditionError(
            key, f"parameter '{key}' of {config.name} must be a number, true, false, 'text' or the name of a tensor"
        )
    return Default(text)


def _value(text: str) -> Value | None:
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _TEXT.fullmatch(text)
    return (match[1] or match[2] or "") if match else None


def _comparable(datatype: str, value: Value) -> bool:
    if isinstance(value, bool | str):
        return datatype == ("BOOL" if isinstance(value, bool) else "BYTES")
    return datatype not in ("BOOL", "BYTES", "BF16")


def _representable(datatype: str, value: Value) -> bool:
    if not _comparable(datatype, value) or isinstance(value, bool | str) or datatype.startswith("FP"):
        return _comparable(datatype, value)
    limits = np.iinfo(datatype.lower())
    return isinstance(value, int) and limits.min <= value <= limits.max
