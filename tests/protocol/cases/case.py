"""A request with the answer that it must get, and short ways to write one down."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """`content` is the body, or makes it where it is large; `json_length` is the header's value, None for no header.

    `text` is found in the body of the answer. `section` is where the behaviour is described.
    """

    id: str
    cls: str
    model: str
    json_length: int | str | None
    content: bytes | Callable[[], bytes]
    status: int
    text: str
    section: str

    @property
    def body(self) -> bytes:
        return self.content() if callable(self.content) else self.content


SPEC = {
    "floats": ("X", "FP32", [1]),
    "halves": ("H", "FP16", [1, 4]),
    "flags": ("B", "BOOL", [1, 4]),
    "strings": ("TEXT", "BYTES", [1, 1]),
}


class Table:
    """The cases of one class."""

    def __init__(self, cls: str, section: str) -> None:
        self.cls = cls
        self.section = section
        self.cases: list[Case] = []

    def add(
        self,
        id: str,
        content: Any,
        text: str = "",
        *,
        model: str = "floats",
        json_length: int | str | None = None,
        status: int | None = None,
    ) -> None:
        if isinstance(content, str):
            content = content.encode()
        elif isinstance(content, dict):
            content = json.dumps(content).encode()
        status = status if status is not None else 400 if text else 200
        name = f"{self.cls}-{id}"
        self.cases.append(Case(name, self.cls, model, json_length, content, status, text, self.section))

    def binary(
        self,
        id: str,
        document: dict[str, Any] | str,
        tail: bytes,
        text: str = "",
        *,
        model: str = "floats",
        status: int | None = None,
        extra: int = 0,
    ) -> None:
        head = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        self.add(id, head + tail, text, model=model, json_length=len(head) + extra, status=status)


def with_data(data: str, shape: Any = None, datatype: str | None = None, model: str = "floats", more: str = "") -> str:
    """One input with inline data, which is given as text so that it can be anything."""
    name, own_datatype, own_shape = SPEC[model]
    shape_text = shape if isinstance(shape, str) else json.dumps(own_shape if shape is None else shape)
    return (
        f'{{{more}"inputs":[{{"name":"{name}","datatype":"{datatype or own_datatype}",'
        f'"shape":{shape_text},"data":{data}}}]}}'
    )


def ints(data: str, shape: str = "[1,16]") -> str:
    """A request to `simple` whose first input has this data."""
    good = json.dumps(list(range(16)))
    return (
        f'{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":{shape},"data":{data}}},'
        f'{{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":{good}}}]}}'
    )


def binary_input(name: str, datatype: str, shape: list[Any], size: Any, **parameters: Any) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": size, **parameters},
    }


def strings(*elements: bytes) -> bytes:
    return b"".join([struct.pack("<I", len(element)) + element for element in elements])
