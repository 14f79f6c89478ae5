"""How names in a PyTorch model's configuration find its arguments and its results.

Source: the naming conventions of Triton's PyTorch backend: argument names, `<name>__<index>`, or else the order in the
configuration. The controls of sequences, and states among the outputs, go by their index however the others are called.
A tensor of an AOTInductor package is also called by its place in what was exported: `ARGS[0]`,
`ARGS[2][key]`, `KWARGS[key]`, `RESULT`, `RESULT[key][1]`; its index counts all of them in that order.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import InvalidArgument

_PLACE = re.compile(r"(?:ARGS|KWARGS)\[.*|RESULT(?:\[.*)?")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Where each input goes: to a position, or all of them into one dictionary."""

    positions: dict[str, int]
    as_dict: bool = False

    def place(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the arguments; an input that was not sent is None."""
        if self.as_dict:
            return [dict(values)]
        placed = [None] * (max(self.positions.values(), default=-1) + 1)
        for name, position in self.positions.items():
            placed[position] = values.get(name)
        return placed


def arguments(
    names: Sequence[str], forward_names: Sequence[str], takes_dict: bool = False, controls: Collection[str] = ()
) -> Arguments:
    """Return where the configured inputs go; `forward_names` are the arguments of `forward`."""
    if takes_dict and len(forward_names) == 1:
        return Arguments({}, as_dict=True)
    named = {name: forward_names.index(name) for name in names if name in forward_names}
    return Arguments(_with_indices(named, names, controls) or positions(names, indexed=controls))


def positions(names: Sequence[str], places: Sequence[str] = (), indexed: Collection[str] = ()) -> dict[str, int]:
    """Return the index of each name if every name has one of its own, otherwise the place in the configuration.

    `places` are the names of a package's tensors, see `tensor_names`. The names that are `indexed` go by their index
    even when the others have none.

    Raises:
        ValueError: the package has no such tensor.
    """
    ordered = {name: place for place, name in enumerate(name for name in names if name not in indexed)}
    found = (
        _with_indices({}, names, names, places)
        or _with_indices(ordered, names, indexed)
        or {name: place for place, name in enumerate(names)}
    )
    for name, index in found.items():
        if places and (index >= len(places) or (_PLACE.fullmatch(name) and name not in places)):
            raise ValueError(f"the package has no tensor {name}, it has {', '.join(places)}")
    return found


def _with_indices(
    found: Mapping[str, int], names: Sequence[str], indexed: Collection[str], places: Sequence[str] = ()
) -> dict[str, int]:
    """Return what was found and the indices of those that are `indexed`, nothing unless each name has a place."""
    indices = {name: index for name in indexed if (index := _index(name, places)) is not None}
    both = {**indices, **found}
    return both if len(both) == len(set(both.values())) == len(names) else {}


def _index(name: str, places: Sequence[str]) -> int | None:
    """Return which of a package's tensors a name is, or the index that is all that follows its first `__`."""
    if name in places:
        return places.index(name)
    digits = name.partition("__")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def tensor_names(call_spec: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what the inputs and the outputs of a package are called, in their order.

    `call_spec` is PyTorch's, two trees in JSON: of the arguments, positional ones before those by keyword, and of what
    is returned. A node of one has a `type`, none for a tensor or a constant, and the keys of a dictionary as its
    `context`.
    """
    (_, taken), (_, returned) = map(json.loads, call_spec)
    by_position, by_keyword = taken["children_spec"]
    return [*_leaves(by_position, "ARGS"), *_leaves(by_keyword, "KWARGS")], list(_leaves(returned, "RESULT"))


def _leaves(node: Mapping[str, Any], name: str) -> Iterator[str]:
    if node["type"] is None:
        yield name
        return
    children = node["children_spec"]
    is_dict = node["type"].endswith(("dict", "Dict")) and isinstance(node["context"], str)
    keys = json.loads(node["context"]) if is_dict else range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, f"{name}[{key}]")


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
