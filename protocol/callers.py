"""The models that wait for the answer to a request, because they have called others: in a text, and in a parameter.

`<name>//<version>` is one of them, or `<name>` alone, as processes of earlier versions of Eagleray say it: no name
holds a "/". With "/" between them those processes read the names among others that are none.
"""

from typing import Final

MAX_CALLERS: Final = 16
"""How many models may wait for each other."""
_PARTS: Final = 3


def caller(name: str, version: str) -> str:
    """Return what stands for a version of a model."""
    return f"{name}//{version}"


def name_of(entry: str) -> str:
    """Return the name of the model that an entry stands for."""
    return entry.partition("/")[0]


def may_be(entry: str, name: str, version: int) -> bool:
    """Whether an entry stands for a version of a model, or might: where one of the two versions is not known."""
    known, _, its = entry.partition("//")
    return known == name and (version < 0 or not its or its == str(version))


def chain(entries: tuple[str, ...], name: str) -> str:
    """Return who waits for whom, as an error says it."""
    return " -> ".join([*map(name_of, entries), name])


def read_callers(value: str) -> tuple[str, ...]:
    """Return the entries of a parameter; of more than there may be, enough to tell that."""
    parts = value.split("/", _PARTS * MAX_CALLERS)
    found: list[str] = []
    while parts:
        size = _PARTS if len(parts) >= _PARTS and not parts[1] else 1
        found.append("/".join(parts[:size]))
        del parts[:size]
    return tuple(found)
