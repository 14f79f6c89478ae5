"""JSON with NaN, infinities, a byte order mark or bytes that are not UTF-8: Triton takes it, and orjson refuses it."""

import json
from typing import Any

import orjson

from protocol.json_document import with_names_of_python


def read_json(text: bytes) -> Any:
    """Return a document; bytes that are not UTF-8 stand in its strings as with `surrogateescape`.

    Raises:
        ValueError: it is no JSON, or nests too deep.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(with_names_of_python(text).decode("utf-8-sig", "surrogateescape"))
        except RecursionError as error:
            raise ValueError("the document nests too deep") from error


def write_json(document: Any) -> bytes:
    """Return what `read_json` reads as the same document.

    Raises:
        ValueError: a string has surrogates that stand for no byte.
        RecursionError: it nests too deep.
    """
    try:
        text = orjson.dumps(document)
        if b"null" not in text:  # which it writes for what is not finite, too
            return text
    except TypeError:
        pass
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")
