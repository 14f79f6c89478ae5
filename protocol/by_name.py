"""Dataclasses that a process of another version has pickled, as what Ray keeps to start a process with."""

from dataclasses import fields
from typing import Any


class ByName:
    """Has a dataclass pickled by the names of its fields; by default it is by their places.

    What it had not when it was pickled has its default, and what it has no longer is left out.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what `pickle` makes it anew from."""
        known: Any = self
        return restored, (type(self), {each.name: getattr(self, each.name) for each in fields(known)})


def restored(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass of these values; unpickling calls this."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
