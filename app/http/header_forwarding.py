"""`--http-header-forward-pattern`: request headers that a model gets as parameters of the request."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument, ServingError
from protocol.json_document import parse
from protocol.limits import DEFAULT_LIMITS

RESERVED = frozenset(
    {
        "binary_data_output",
        "headers",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
    }
)


class HeaderForwarding:
    """Which headers are forwarded: those in whose name the pattern is found, in whatever case.

    Raises:
        ValueError: the pattern is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None

    def choose(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the parameters that a request gets from its headers, the names as the client wrote them.

        Raises:
            InvalidArgument: a header that matches has the name of a parameter with a meaning of its own.
        """
        chosen: dict[str, str] = {}
        if self._pattern is None:
            return chosen
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if self._pattern.search(name) is None:
                continue
            if name.lower() in RESERVED or name.lower().startswith("triton_"):
                raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
            chosen[name] = raw_value.decode("utf-8", "replace")
        return chosen


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
