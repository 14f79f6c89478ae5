"""What the endpoints of the API have in common: parameters of the path, JSON in and out."""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import InvalidArgument
from protocol.json_document import parse
from protocol.limits import Limits
from protocol.model_version import parse_version

_MAX_BYTES: Final = 1 << 18
_MAX_MEMBERS: Final = 1 << 16

Endpoint = Callable[[Request], Awaitable[Response]]


def path_name(request: Request, parameter: str) -> str:
    """Return a segment of the path, percent-decoded; "" when the route does not have it."""
    quoted: str = request.path_params.get(parameter) or ""
    return unquote_to_bytes(quoted.encode("latin-1")).decode("utf-8", "replace")


def model_and_version(request: Request) -> tuple[str, int]:
    """Return the model that the path names, and the version, -1 for none.

    Raises:
        InvalidArgument: the version is no number of one.
    """
    return path_name(request, "model"), parse_version(request.path_params.get("version") or "")


async def json_object(request: Request) -> dict[str, Any]:
    """Return the body, which must be a JSON object; an empty one counts as `{}`.

    Raises:
        InvalidArgument: it is something else, or too much for the loop to parse.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size <= _MAX_BYTES:
            pieces.append(piece)
    if size > _MAX_BYTES:
        raise InvalidArgument(f"request JSON of {size} bytes is larger than {_MAX_BYTES} bytes")
    return parse_object(b"".join(pieces))


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a body as `json_object` does, whatever its length; raises as it does."""
    if not body:
        return {}
    if body.count(b",") + body.count(b"[") > _MAX_MEMBERS:
        raise InvalidArgument(f"request JSON has more than {_MAX_MEMBERS} elements")
    document = parse(body, Limits.of_input_size(len(body)))
    if not isinstance(document, dict):
        raise InvalidArgument("failed to parse the request JSON buffer: expected a JSON object")
    return document


def json_response(value: Any) -> Response:
    """Return a value as JSON."""
    return Response(orjson.dumps(value), media_type="application/json")


def empty_response(status: int = 200) -> Response:
    """Return a response without a body."""
    return Response(status_code=status)
