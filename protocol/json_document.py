"""JSON of a request: parsing within bounds, and typed access to members with Triton's texts.

Triton parses with RapidJSON, which takes NaN, Inf and Infinity, each with a minus too. orjson is tried first; documents
that it refuses and that hold such a token go to the parser of the standard library, numbers to orjson all the same.
"""

import codecs
import json
import re
from typing import Any

import orjson

from protocol.errors import InvalidArgument
from protocol.limits import Limits

MAX_UINT32 = 2**32 - 1
MAX_UINT64 = 2**64 - 1

NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NON_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
NON_NUMBER = "attempt to access JSON non-number as double"
NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NON_STRING = "attempt to access JSON non-string as string"
NON_ARRAY = "attempt to access JSON non-array as array"

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)  # matches wherever it starts: one pass
_TOO_BIG = "Number too big to be stored in double."
_NON_FINITE = re.compile(rb"\b(?:NaN|Inf|Infinity)\b")
_NAMES_OF_RAPIDJSON = re.compile(rb"\bInf\b|-NaN\b")
_STRING_OR_NAME = re.compile(b"(%b)|%b" % (_STRING.pattern, _NAMES_OF_RAPIDJSON.pattern), re.DOTALL)
_RAPIDJSON_TEXTS = (
    ("empty", "The document is empty."),
    ("content after document", "The document root must not be followed by other values."),
    ("':' after key", "Missing a colon after a name of object member."),
    ("expected a string key", "Missing a name for object member."),
    ("',' or ']'", "Missing a comma or ] after an array element."),
    ("',' or '}'", "Missing a comma or } after an object member."),
    ("surrogate in string", "The surrogate pair in string is invalid."),
    ("escaped sequence", "Invalid escape character in string."),
    ("UTF-8:", "Invalid encoding in string."),
    ("infinity when parsed", _TOO_BIG),
)


def parse(buffer: bytes | memoryview, limits: Limits) -> Any:
    """Return the document; a byte order mark may stand before it.

    Raises:
        InvalidArgument: with the text of Triton's parser, or because the document nests too deep.
    """
    if len(buffer) > limits.http_max_input_size_bytes:
        raise InvalidArgument(
            f"request JSON size of {len(buffer)} bytes exceeds the maximum allowed input size of "
            f"{limits.http_max_input_size_bytes} bytes. Use --http-max-input-size to increase the limit."
        )
    if len(buffer) > limits.json_max_elements:
        _check_elements(bytes(buffer), limits.json_max_elements)
    if buffer[:3] == codecs.BOM_UTF8:
        buffer = buffer[3:]
    try:
        return orjson.loads(buffer)
    except orjson.JSONDecodeError as error:
        message, position = error.msg, error.pos
    text = bytes(buffer)
    if "depth limit" in message:
        raise too_deep(limits)
    if _NON_FINITE.search(text) is not None:
        return _parse_non_finite(text, limits)
    reason = next((ours for theirs, ours in _RAPIDJSON_TEXTS if theirs in message), "Invalid value.")
    raise _malformed(reason, position)


def _check_elements(text: bytes, most: int) -> None:
    """Raise `InvalidArgument` if there are more values than allowed, told by the commas and brackets before them.

    A value that takes two bytes in a document takes some sixty as an object: they must be counted before parsing.
    """
    if text.count(b",") + text.count(b"[") <= most:
        return
    text = _STRING.sub(b"", text)
    if text.count(b",") + text.count(b"[") > most:
        raise InvalidArgument(f"request JSON has more than {most} elements")


def string_end(text: bytes, begin: int) -> int:
    """Return where the quote is that ends a string whose first character is at `begin`, -1 if there is none."""
    end = text.find(b'"', begin)
    if end < 0 or text.find(b"\\", begin, end) < 0:
        return end
    found = _STRING.match(text, begin - 1)
    return found.end() - 1 if found is not None and text[found.end() - 1 : found.end()] == b'"' else -1


def too_deep(limits: Limits) -> InvalidArgument:
    """Return the error for a document that nests deeper than allowed."""
    return InvalidArgument(f"JSON nesting depth exceeds maximum allowed limit ({limits.json_max_depth})")


def _malformed(reason: str, position: int) -> InvalidArgument:
    return InvalidArgument(f"failed to parse the request JSON buffer: {reason} at {position}")


def _parse_non_finite(text: bytes, limits: Limits) -> Any:
    text = with_names_of_python(text)
    try:
        document = json.loads(text.decode("utf-8"), parse_float=orjson.loads, parse_int=orjson.loads)
        if b"\\u" in text:
            orjson.dumps(document)  # refuses lone surrogates, which the standard library lets through
    except RecursionError:
        raise too_deep(limits) from None
    except UnicodeDecodeError as error:
        raise _malformed("Invalid encoding in string.", error.start) from None
    except orjson.JSONDecodeError as error:  # of a number alone, which no double holds
        raise _malformed(_TOO_BIG, text.find(error.doc.encode())) from None
    except json.JSONDecodeError as error:
        raise _malformed("Invalid value.", error.pos) from None
    except (ValueError, TypeError):
        raise _malformed("Invalid value.", 0) from None
    return document


def with_names_of_python(text: bytes) -> bytes:
    """Return a document with names for what is not finite that the parser of the standard library knows."""
    if _NAMES_OF_RAPIDJSON.search(text) is None:
        return text
    return _STRING_OR_NAME.sub(_name_of_python, text)


def _name_of_python(match: re.Match[bytes]) -> bytes:
    return match[1] or (b"Infinity" if match[0] == b"Inf" else b"NaN")


def unparsable(name: str, reason: str) -> InvalidArgument:
    """Return the error for a member that is not what it should be."""
    return InvalidArgument(f"Unable to parse '{name}': {reason}")


def member(owner: Any, name: str) -> Any:
    """Return a member that must be there."""
    if not isinstance(owner, dict) or name not in owner:
        raise unparsable(name, f"attempt to access non-existing object member '{name}'")
    return owner[name]


def array_member(owner: Any, name: str) -> list[Any]:
    """Return a member that must be an array."""
    value = member(owner, name)
    if not isinstance(value, list):
        raise unparsable(name, NON_ARRAY)
    return value


def string_member(owner: Any, name: str) -> str:
    """Return a member that must be a string."""
    return as_string(member(owner, name), name)


def as_string(value: Any, name: str) -> str:
    """Return the value of the member of that name if it is a string."""
    if not isinstance(value, str):
        raise unparsable(name, NON_STRING)
    return value


def as_boolean(value: Any, name: str) -> bool:
    """Return the value of the member of that name if it is true or false."""
    if not isinstance(value, bool):
        raise unparsable(name, NON_BOOLEAN)
    return value


def as_unsigned(value: Any, name: str) -> int:
    """Return the value of the member of that name if it is an integer in the range of uint64."""
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise unparsable(name, NON_UNSIGNED)
    return value


def parameters_of(owner: Any) -> dict[str, Any]:
    """Return the `parameters` of an input or output; like Triton, what is not an object holds none."""
    parameters = owner.get("parameters") if isinstance(owner, dict) else None
    return parameters if isinstance(parameters, dict) else {}
