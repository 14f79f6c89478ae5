"""More parameters for a v2 request that is on its way as bytes."""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from deployments.lane.frames import Buffer
from protocol.errors import ServingError
from protocol.json_document import parse
from protocol.limits import DEFAULT_LIMITS


def add_parameters(
    body: Buffer, json_length: int | None, parameters: dict[str, str]
) -> tuple[Sequence[Buffer], int | None]:
    """Return a v2 request's body, in parts, and the length of its JSON with more `parameters` in it.

    They take the place of the client's own of the same name. What is no JSON object is returned as it is: whoever
    decodes it will say so. A raw request (`json_length` 0) has no place for parameters.
    """
    end = len(body) if json_length is None else json_length
    text = bytes(body[:end])
    if not text or end > len(body):
        return (body,), json_length
    try:
        document = parse(text, DEFAULT_LIMITS)
    except ServingError:
        return (body,), json_length
    if not isinstance(document, dict) or not isinstance(document.get("parameters", {}), dict):
        return (body,), json_length
    document["parameters"] = {**document.get("parameters", {}), **parameters}
    head = _dump(document, text)
    rest = memoryview(body)[end:]
    return ((head, rest) if len(rest) else (head,)), None if json_length is None else len(head)


def _dump(document: Any, source: bytes) -> bytes:
    # orjson writes null for what is not finite.
    if b"NaN" in source or b"Infinity" in source:
        return json.dumps(document, separators=(",", ":")).encode()
    return orjson.dumps(document)
