"""A v2 request with inline `data` becomes the same request with its tensors in binary, which is quick to decode."""

from typing import Any

import orjson

from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.infer import Array
from protocol.json_document import array_member, parse, string_member
from protocol.json_tensor import array_from_json
from protocol.limits import Limits
from protocol.output_content import tensor_bytes
from protocol.request_header import SentInput


def to_binary(document: Any, rest: memoryview, model_name: str, limits: Limits) -> tuple[bytes, list[Any]]:
    """Return the JSON and the binary parts of a parsed request; `rest` is what followed its JSON.

    Raises:
        InvalidArgument: an input is malformed, or its values do not fit its datatype or shape.
    """
    request_id = string_member(document, "id") if isinstance(document, dict) and "id" in document else ""
    members = array_member(document, "inputs")
    if len(members) > limits.max_inputs:
        raise InvalidArgument(f"request has {len(members)} inputs, more than {limits.max_inputs}")
    parts: list[Any] = []
    for element in members:
        sent = SentInput(element, limits)
        if not sent.inline:
            parts.append(rest[: sent.byte_size])
            rest = rest[sent.byte_size :]
            continue
        datatype = BY_NAME[sent.datatype]
        array: Array = array_from_json(
            element.pop("data"), datatype, sent.shape, sent.name, model_name, limits, request_id
        )
        content = tensor_bytes(array, datatype)
        element["parameters"] = {**element.get("parameters", {}), "binary_data_size": len(content)}
        parts.append(content)
    return orjson.dumps(document), [*parts, rest]


def request_in_binary_form(
    body: memoryview, json_length: int | None, model_name: str, limits: Limits
) -> tuple[int, list[Any]]:
    """Return the length of the JSON, and the parts, of the request in a body; raises as `to_binary`."""
    end = len(body) if json_length is None else json_length
    header, parts = to_binary(parse(body[:end], limits), body[end:], model_name, limits)
    return len(header), [header, *parts]
