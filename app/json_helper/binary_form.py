"""A v2 request with inline `data` becomes the same request with its tensors in binary, which is quick to decode."""

from typing import Any

from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.infer import Array
from protocol.json_document import array_member, parameters_of, parse, string_member
from protocol.json_tensor import array_from_json
from protocol.json_text import write_json
from protocol.limits import Limits
from protocol.output_content import tensor_bytes
from protocol.output_plan import read_output_forms
from protocol.request_header import SentInput
from protocol.request_parameters import FORWARDED, read_parameters


def to_binary(document: Any, rest: memoryview, model_name: str, limits: Limits) -> tuple[bytes, list[Any]]:
    """Return the JSON and the binary parts of a parsed request; `rest` is what followed its JSON.

    What means nothing is left out, so that the JSON is short whatever was sent.

    Raises:
        InvalidArgument: an input is malformed, or its values do not fit its datatype or shape.
    """
    request_id = string_member(document, "id") if isinstance(document, dict) and "id" in document else ""
    read_parameters(document, limits)
    members = array_member(document, "inputs")
    if len(members) > limits.max_inputs:
        raise InvalidArgument(f"request has {len(members)} inputs, more than {limits.max_inputs}")
    inputs: list[dict[str, Any]] = []
    parts: list[Any] = []
    for element in members:
        sent = SentInput(element, limits)
        described = _described(element, ("name", "datatype", "shape"))
        content: Any = rest[: sent.byte_size]
        if sent.inline:
            datatype = BY_NAME[sent.datatype]
            data = element.pop("data")
            array: Array = array_from_json(data, datatype, sent.shape, sent.name, model_name, limits, request_id)
            content = tensor_bytes(array, datatype)
            described["parameters"] = {"binary_data_size": len(content)}
        rest = rest[sent.byte_size :]
        inputs.append(described)
        parts.append(content)
    kept = {name: document[name] for name in ("id", "parameters") if name in document}
    if isinstance(document.get(FORWARDED), dict):
        kept[FORWARDED] = document[FORWARDED]
    kept["inputs"] = inputs
    if read_output_forms(document, limits):
        kept["outputs"] = [_described(element, ("name",)) for element in document["outputs"]]
    return write_json(kept), [*parts, rest]


def _described(element: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return these members of an input or output, and its parameters as far as they are simple."""
    parameters = parameters_of(element).items()
    simple = {name: value for name, value in parameters if not isinstance(value, list | dict)}
    return {name: element[name] for name in names} | {"parameters": simple}


def request_in_binary_form(
    body: memoryview, json_length: int | None, model_name: str, limits: Limits
) -> tuple[int, list[Any]]:
    """Return the length of the JSON, and the parts, of the request in a body; raises as `to_binary`."""
    end = len(body) if json_length is None else json_length
    header, parts = to_binary(parse(body[:end], limits), body[end:], model_name, limits)
    return len(header), [header, *parts]
