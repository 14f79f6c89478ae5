"""How names in a PyTorch model's configuration find its arguments and its results.

Source: the naming conventions of Triton's PyTorch backend: argument names, `<name>__<index>`, or else the order in the
configuration; for AOTInductor packages also `ARGS[n]`, `KWARGS[key]` and `RESULT[n]`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import InvalidArgument

_BRACKETED = re.compile(r"(?:ARGS|RESULT)\[(\d+)\]")
_KEYWORD = re.compile(r"KWARGS\[(.+)\]")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Where each input goes: a position, a keyword, or all of them into one dictionary."""

    positions: dict[str, int]
    keywords: dict[str, str]
    as_dict: bool = False

    def place(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments; an input that was not sent is None or left to its default."""
        if self.as_dict:
            return [dict(values)], {}
        positional: list[Any] = []
        if self.positions:
            positional = [None] * (max(self.positions.values()) + 1)
            for name, position in self.positions.items():
                positional[position] = values.get(name)
        return positional, {key: values[name] for name, key in self.keywords.items() if name in values}


def arguments(names: Sequence[str], forward_names: Sequence[str], takes_dict: bool = False) -> Arguments:
    """Return where the configured inputs go; `forward_names` are the arguments of `forward`, none if unknown."""
    if takes_dict and len(forward_names) == 1:
        return Arguments({}, {}, as_dict=True)
    if set(names) <= set(forward_names):
        return Arguments({name: list(forward_names).index(name) for name in names}, {})
    keywords = {name: match[1] for name in names if (match := _KEYWORD.fullmatch(name))}
    return Arguments(positions([name for name in names if name not in keywords]), keywords)


def positions(names: Sequence[str]) -> dict[str, int]:
    """Return the index in each name if every name has one of its own, otherwise the place in the configuration."""
    indexed = {name: index for name in names if (index := _index(name)) is not None}
    if len(set(indexed.values())) == len(names):
        return indexed
    return {name: place for place, name in enumerate(names)}


def _index(name: str) -> int | None:
    """Return the index in a name: all that follows its first `__`, or what is in brackets."""
    bracketed = _BRACKETED.fullmatch(name)
    digits = bracketed[1] if bracketed else name.partition("__")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def results(returned: Any, places: Mapping[str, int], of_strings: bool) -> dict[str, Any]:
    """Return what the model returned, by output name; `of_strings`: a list is the only output, one of type BYTES.

    Raises:
        InvalidArgument: the model returned fewer results than are configured.
    """
    if isinstance(returned, Mapping):
        if all(name in returned for name in places):
            return {name: returned[name] for name in places}
        returned = list(returned.values())
    elif not isinstance(returned, tuple | list) or (of_strings and isinstance(returned, list)):
        returned = (returned,)
    for name, place in places.items():
        if place >= len(returned):
            raise InvalidArgument(
                f"The output {name} in the model configuration refers to an output index which doesn't exist. "
                f"This model has {len(returned)} outputs"
            )
    return {name: returned[place] for name, place in places.items()}
