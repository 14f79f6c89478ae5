"""One gRPC inference request with what must come of it, and short ways to write one down."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferRequest

from tests.protocol.cases.case import strings

OK, INVALID, NOT_FOUND = 0, 3, 5
_SPEC = {
    "floats": ("X", "FP32", [2]),
    "halves": ("H", "FP16", [1, 4]),
    "flags": ("B", "BOOL", [1, 4]),
    "strings": ("TEXT", "BYTES", [1, 1]),
}
PREFIX = "[request id: <id_unknown>] "


@dataclass(frozen=True, slots=True)
class GrpcCase:
    """`content` makes the message, or is its bytes. `text` is found in the error's message.

    `section` is where the behaviour is described.
    """

    id: str
    section: str
    model: str
    content: bytes | Callable[[], ModelInferRequest | bytes]
    code: int = OK
    text: str = ""

    @property
    def body(self) -> bytes:
        made = self.content() if callable(self.content) else self.content
        return made if isinstance(made, bytes) else made.SerializeToString()


def parameter(value: Any, kind: str = "") -> dict[str, Any]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {kind or kinds[type(value)]: value}


def message(model: str = "floats", inputs: Iterable[dict[str, Any]] | None = None, **more: Any) -> ModelInferRequest:
    """A request with these inputs, or with the model's own and raw zeros."""
    if inputs is None:
        inputs = [tensor(model)]
        more.setdefault("raw_input_contents", [_raw(model)])
    return ModelInferRequest(model_name=model, inputs=list(inputs), **more)


def tensor(model: str = "floats", **more: Any) -> dict[str, Any]:
    name, datatype, shape = _SPEC[model]
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def _raw(model: str) -> bytes:
    return {"floats": bytes(8), "halves": bytes(8), "flags": bytes(4), "strings": strings(b"a")}[model]


def pair(**more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": "INT32", "shape": [1, 16], **more} for name in ("INPUT0", "INPUT1")]


def simple(**more: Any) -> ModelInferRequest:
    raw = np.arange(16, dtype=np.int32).tobytes()
    return message("simple", pair(), **{"raw_input_contents": [raw, raw], **more})
