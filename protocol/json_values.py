"""The values in a JSON request, cut out of it: what is left is the same from one request to the next."""

import re
from collections.abc import Sequence

import orjson

# The largest request that is cut: what parsing all of a larger one takes beside its values does not count.
MAX_CUT_BYTES = 1 << 16
_DATA = re.compile(rb'"data"[ \t\n\r]*+:[ \t\n\r]*+(?=\[)')
_MARK = re.compile(rb'[\[\]]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)  # a string wherever it starts: one pass


def cut_values(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return the text with an empty array for that of each member `data`, and these arrays' texts in their order.

    None of them is parsed. Where a text without backslashes, of which all arrays that are cut out are an input's
    values, is correct JSON, so is every text that leaves the same, if its arrays are; and they are the same inputs'.
    """
    kept: list[bytes] = []
    arrays: list[bytes] = []
    at = 0
    while (found := _DATA.search(text, at)) is not None:
        end = _array_end(text, found.end())
        if end < 0:
            break
        kept.append(text[at : found.end()])
        arrays.append(text[found.end() : end])
        at = end
    kept.append(text[at:])
    return b"[]".join(kept), arrays


def _array_end(text: bytes, start: int) -> int:
    """Return where the array ends that starts there, -1 if it does not."""
    end = text.find(b"]", start)
    if end < 0:
        return -1
    if text.find(b"[", start + 1, end) < 0 and text.find(b'"', start, end) < 0:
        return end + 1
    depth = 0
    for mark in _MARK.finditer(text, start):
        first = text[mark.start()]
        if first == ord("["):
            depth += 1
        elif first == ord("]"):
            depth -= 1
            if not depth:
                return mark.end()
    return -1


def parse_arrays(arrays: Sequence[bytes]) -> list[list[object]] | None:
    """Return what the texts say, None if one of them is no array that the quick parser takes."""
    try:
        return [orjson.loads(array) for array in arrays]
    except orjson.JSONDecodeError:
        return None
