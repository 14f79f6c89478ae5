"""The generate extension: flat JSON becomes a v2 request to a model, and its responses become flat JSON.

Every key that names an input becomes that tensor, a scalar or a flat array; the object `parameters` is flattened in
the same way; `id` names the request; all other keys become parameters of the request.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import orjson

from deployments.lane.frames import Buffer
from protocol.errors import Internal, InvalidArgument
from protocol.infer import Parameter
from protocol.json_document import as_string, parse, too_deep, with_names_of_python
from protocol.json_text import read_json, write_json
from protocol.limits import Limits
from protocol.normalise import request_prefix

_NESTED = "parameters"
# It would change the form in which the response arrives here.
_NOT_PASSED = "binary_data_output"


class GenerateMapping:
    """The mapping of one model version.

    Args:
        inputs: as its metadata lists them: name, datatype and shape, -1 for what may vary.
        limits: on the JSON of requests.
        decoupled: its last response may only say that no more will come.
    """

    def __init__(self, inputs: Sequence[dict[str, Any]], limits: Limits, decoupled: bool = False) -> None:
        self.inputs = inputs
        self._limits = limits
        self._decoupled = decoupled
        self._inputs = {tensor["name"]: (tensor["datatype"], tuple(tensor["shape"])) for tensor in inputs}
        self._quoted = [orjson.dumps(name) for name in self._inputs]

    def request(self, body: Buffer, forwarded: dict[str, str]) -> bytes:
        """Return the v2 request for a body as JSON; arguments and errors are those of `document`."""
        text = bytes(body)
        try:
            return write_json(self.document(text, forwarded))
        except RecursionError:
            raise too_deep(self._limits) from None

    def document(self, text: bytes, forwarded: dict[str, str]) -> dict[str, Any]:
        """Return the v2 request for a body, with the parameters that come from forwarded headers.

        Raises:
            InvalidArgument: the body is not such JSON, an input is in it twice, or a value does not fit its shape.
        """
        document = parse(text, self._limits)
        if not isinstance(document, dict):
            raise InvalidArgument("attempt to get members for non-object")
        self._check_names(text)
        inputs: list[dict[str, Any]] = []
        parameters: dict[str, Parameter] = {}
        self._read(document, inputs, parameters, nested=False)
        request: dict[str, Any] = {}
        if "id" in document:
            request["id"] = as_string(document["id"], "id")
        parameters.update(forwarded)
        if parameters:
            request["parameters"] = parameters
        request["inputs"] = inputs
        return request

    def _check_names(self, text: bytes) -> None:
        """Refuse an input that is given twice: of two equal keys the parser tells only the last."""
        if b"\\u" not in text and all(text.count(name) < 2 for name in self._quoted):
            return
        try:
            json.loads(with_names_of_python(text), object_pairs_hook=self._check_pairs)
        except RecursionError:
            raise too_deep(self._limits) from None

    def _check_pairs(self, pairs: list[tuple[str, Any]]) -> None:
        given: set[str] = set()
        for name, _ in pairs:
            if name in given and name in self._inputs:
                raise _given_twice(name)
            given.add(name)

    def _read(
        self, document: dict[str, Any], inputs: list[dict[str, Any]], parameters: dict[str, Parameter], nested: bool
    ) -> None:
        for key, value in document.items():
            if key in self._inputs:
                if key == _NESTED and not nested:
                    raise InvalidArgument(
                        "the model has an input named 'parameters', which generate can not tell apart"
                    )
                if any(tensor["name"] == key for tensor in inputs):
                    raise _given_twice(key)
                inputs.append(self._tensor(key, value))
            elif key == _NESTED and not nested:
                if not isinstance(value, dict):
                    raise InvalidArgument(
                        "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
                    )
                try:
                    self._read(value, inputs, parameters, nested=True)
                except InvalidArgument as error:
                    raise InvalidArgument(f"Converting keyword: 'parameters': {error.message}") from None
            elif key != _NOT_PASSED:
                parameters[key] = _parameter(key, value)

    def _tensor(self, name: str, value: Any) -> dict[str, Any]:
        datatype, dims = self._inputs[name]
        data = value if isinstance(value, list) else [value]
        return {"name": name, "datatype": datatype, "shape": _shape(name, dims, len(data)), "data": data}

    def response(self, body: bytes, final: bool) -> bytes | None:
        """Return one v2 response as flat JSON; None when it only says that no more will come.

        Raises:
            Internal: the response is not JSON.
        """
        try:
            document = read_json(body)
        except ValueError:
            raise Internal("the response of the model can not be converted to JSON") from None
        outputs = document.pop("outputs", [])
        parameters = document.pop("parameters", {})
        if final and self._decoupled and not outputs and not parameters:
            return None
        document |= parameters
        for output in outputs:
            data = output.get("data", [])
            document[output["name"]] = data[0] if len(data) == 1 else data
        return write_json(document)


def _given_twice(name: str) -> InvalidArgument:
    return InvalidArgument(f"{request_prefix('')}input '{name}' already exists in request")


def _parameter(key: str, value: Any) -> Parameter:
    if isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgument(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _shape(name: str, dims: tuple[int, ...], count: int) -> list[int]:
    """Return the shape of `count` elements: the innermost -1 takes what the fixed dimensions leave, others are 1."""
    fixed = math.prod(dim for dim in dims if dim >= 0)
    rest, left_over = divmod(count, fixed) if fixed else (0, count)
    shape: list[int] = []
    for dim in reversed(dims):
        if dim < 0:
            dim, rest = rest, 1
        shape.append(dim)
    if left_over or math.prod(shape) != count:
        raise InvalidArgument(f"The schema can not convert input '{name}' to tensor with proper shape")
    return shape[::-1]
