"""The body of a load, which may hold files of many megabytes: read in steps between which other threads run."""

import binascii
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from app.http.endpoint import parse_object
from app.service.model_control import LoadRequest
from protocol.errors import Internal, InvalidArgument
from protocol.json_document import as_string, string_end

# A string of this length is not given to the parser, which holds the interpreter's lock until it is done.
_LONG_BYTES: Final = 1 << 16
# Characters of base64 that are decoded at once, in some 3 ms; whole groups of four.
_STEP: Final = 1 << 20
_MAX_STRINGS: Final = 1 << 17


def read_load(name: str, pieces: Sequence[bytes]) -> LoadRequest:
    """Return what a client wants loaded, by a body that has come in pieces; for a thread, since it takes some time.

    Raises:
        ServingError: the body is no such JSON, or a file in it is not base64.
    """
    text = b"".join(pieces)  # without the interpreter's lock, as all of them are bytes
    short, places = _without_long_strings(text)
    try:
        parameters = parameters_of_body(parse_object(short))
    except InvalidArgument:
        if not places:
            raise
        parameters, places = parameters_of_body(parse_object(text)), {}  # says where the mistake is
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        begin, end = places.get(value, (0, 0)) if isinstance(value, str) else (0, 0)
        if key == "config":
            config = _decoded(text[begin:end]) if end else as_string(value, key)
        elif not key.startswith("file:"):
            raise Internal("unexpected error on creating Triton parameter")
        elif end:
            files[key] = _from_base64(text, begin, end, key)
        else:
            files[key] = _from_base64(as_string(value, key), 0, len(value), key)
    return LoadRequest(name, config, files)


def parameters_of_body(document: dict[str, Any]) -> dict[str, Any]:
    """Return the `parameters` of a load or unload.

    Raises:
        InvalidArgument: they are no object.
    """
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidArgument("Unable to parse 'parameters': attempt to get members for non-object")
    return parameters


def _without_long_strings(text: bytes) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return JSON with names in place of its long strings, and where these are; all of it if one has escapes."""
    token = secrets.token_hex(16)
    kept: list[bytes] = []
    places: dict[str, tuple[int, int]] = {}
    kept_to = 0
    for begin, end in _strings(text):
        if end - begin < _LONG_BYTES:
            continue
        if text.find(b"\\", begin, end) >= 0:
            return text, {}
        name = f"{token}-{len(places)}"
        places[name] = begin, end
        kept += (text[kept_to:begin], name.encode())
        kept_to = end
    return (b"".join([*kept, text[kept_to:]]), places) if places else (text, {})


def _strings(text: bytes) -> Iterator[tuple[int, int]]:
    """Go through the strings of JSON: where they begin behind a quote, and where they end before the next."""
    at = 0
    for _ in range(_MAX_STRINGS):
        begin = text.find(b'"', at) + 1
        end = string_end(text, begin) if begin else -1
        if end < 0:
            return
        yield begin, end
        at = end + 1


def _from_base64(text: bytes | str, begin: int, end: int, key: str) -> bytes:
    pieces: list[bytes] = []
    try:
        for at in range(begin, end, _STEP):
            pieces.append(binascii.a2b_base64(text[at : min(at + _STEP, end)], strict_mode=True))
    except ValueError:
        raise _no_base64(key) from None
    if any(len(piece) != _STEP // 4 * 3 for piece in pieces[:-1]):  # padding in the middle
        raise _no_base64(key)
    return b"".join(pieces)


def _no_base64(key: str) -> InvalidArgument:
    return InvalidArgument(f"Unable to parse '{key}': it is not base64")


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("failed to parse the request JSON buffer: Invalid encoding in string.") from None
