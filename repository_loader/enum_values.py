"""Numbers that no value of an enumeration has: protobuf takes them, and nothing that reads them could."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from repository_loader.findings import Fault
from repository_loader.meant_name import meant_value


def unknown_enum_values(message: Message, prefix: str = "") -> Iterator[Fault]:
    """Yield a fault, in the words of protobuf's text format, for each field with such a number."""
    for field, value in message.ListFields():
        for path, item in _items(field, value, prefix + field.name):
            if field.enum_type is not None and item not in field.enum_type.values_by_number:
                yield Fault(path, unknown_enum_value(str(item), field.name, list(field.enum_type.values_by_name)))
            elif isinstance(item, Message):
                yield from unknown_enum_values(item, f"{path}.")


def unknown_enum_value(value: str, field: str, names: list[str]) -> str:
    """Return what protobuf's parser in C++, which is Triton's, says of such a value, and which of `names` is meant."""
    return f'Unknown enumeration value of "{value}" for field "{field}".{meant_value(value, names)}'


def quoted_enum_value(value: str) -> str:
    """Return what that parser says of a text in the place of an enumeration's value, and what to do."""
    return f"Expected integer or identifier, got: {value}; it stands without quotes"


def _items(field: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not field.is_repeated:
        yield path, value
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from ((f'{path}["{key}"]', item) for key, item in value.items())
    else:
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
