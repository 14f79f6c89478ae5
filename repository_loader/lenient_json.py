"""JSON as protobuf's parser in C++ takes it, which Triton reads configurations with.

Source: `allow_legacy_syntax` of protobuf's JsonLexer: names of members without quotes, texts in single quotes, and a
comma after the last element or member.
"""

import json
import re
from typing import Any, Final

# Each alternative takes all of what it begins with, so that the time is linear in the length.
_TOKEN: Final = re.compile(
    r"""
      "[^"\\]*+(?:\\.[^"\\]*+)*+"?                  # a text, which may lack its end
    | '(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'?
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*+)(?P<colon>[ \t\r\n]*+:)?
    | [0-9][A-Za-z0-9_.+-]*+
    | [\[{,][ \t\r\n]*+,                            # a comma that follows no value stays wrong
    | (?P<comma>,)(?=[ \t\r\n]*+[\]}])
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTE: Final = re.compile(r"\\.|\"", re.DOTALL)
_CONSTANTS: Final = frozenset({"true", "false", "null"})


def loads(document: str) -> Any:
    """Return what a document says.

    Raises:
        json.JSONDecodeError: it is not even lenient JSON; this is what a strict parser says of it.
    """
    try:
        return json.loads(document)
    except json.JSONDecodeError as error:
        try:
            return json.loads(normalised(document))
        except json.JSONDecodeError:
            raise error from None


def normalised(document: str) -> str:
    """Return a document as strict JSON, if it is lenient JSON; what is JSON is returned as it is."""
    return _TOKEN.sub(_strict, document)


def _strict(token: re.Match[str]) -> str:
    text = token[0]
    if token["single"] is not None:
        return f'"{_QUOTE.sub(_requoted, token["single"])}"' if len(text) > 1 and text.endswith("'") else text
    if token["colon"] is not None and token["word"] not in _CONSTANTS:
        return f'"{token["word"]}"{token["colon"]}'
    return "" if token["comma"] else text


def _requoted(quote: re.Match[str]) -> str:
    return {'"': '\\"', "\\'": "'"}.get(quote[0], quote[0])
