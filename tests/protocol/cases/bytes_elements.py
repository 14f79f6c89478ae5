"""F-BYTES: strings in binary."""

import struct

from tests.protocol.cases.case import Table, binary_input, strings, with_data

T = Table("F-BYTES", "3.1, 2.2")


def _add(id: str, shape: list[int], content: bytes, text: str = "", status: int | None = None, **more: object) -> None:
    document = {"inputs": [binary_input("TEXT", "BYTES", shape, len(content))], **more}
    T.binary(id, document, content, text, model="strings", status=status)


_END = " for inference input 'TEXT' for model 'strings'"
_PREFIX = "[request id: <id_unknown>] "
_CUT = "incomplete string data for inference input 'TEXT', expecting string of length "
for id, shape, content, text in (
    ("length-beyond-end", [1, 1], struct.pack("<I", 5) + b"abcd", _CUT + "5 but only 4 bytes available"),
    ("length-huge", [1, 1], b"\xff\xff\xff\xff" + b"abcd", _CUT + "4294967295 but only 4 bytes available"),
    ("length-2^31", [1, 1], b"\x00\x00\x00\x80" + b"abcd", _CUT + "2147483648"),
    ("length-big-endian", [1, 1], struct.pack(">I", 4) + b"abcd", _CUT + "67108864"),
    ("empty", [1, 1], b"", "expected 1 string elements" + _END + ", got 0"),
    ("one-byte", [1, 1], b"\x00", "incomplete string length indicator" + _END + ", expecting 4 bytes but only 1"),
    (
        "three-bytes",
        [1, 1],
        b"\x00\x00\x00",
        "incomplete string length indicator" + _END + ", expecting 4 bytes but only 3",
    ),
    ("no-length", [1, 1], b"abcd", _CUT),
    ("missing-last-byte", [1, 2], strings(b"ab", b"cd")[:-1], _CUT + "2 but only 1 bytes available"),
    ("cut-and-too-few", [1, 3], strings(b"ab", b"cd")[:-1], _PREFIX + "expected 3 string elements" + _END + ", got 2"),
    ("extra-byte", [1, 1], strings(b"ab") + b"x", "incomplete string length indicator" + _END),
    (
        "extra-four-bytes",
        [1, 1],
        strings(b"ab") + bytes(4),
        "unexpected number of string elements 2" + _END + ", expecting 1",
    ),
    (
        "one-too-many",
        [1, 2],
        strings(b"a", b"b", b"c"),
        "unexpected number of string elements 3" + _END + ", expecting 2",
    ),
    ("one-too-few", [1, 3], strings(b"a", b"b"), "expected 3 string elements" + _END + ", got 2"),
    ("even-but-one-too-few", [1, 21], strings(*[b"abcd"] * 20), "expected 21 string elements"),
    ("even-but-one-too-many", [1, 19], strings(*[b"abcd"] * 20), "unexpected number of string elements 20"),
    ("even-but-one-lies", [1, 20], strings(*[b"abcd"] * 19) + struct.pack("<I", 5) + b"abcd", "incomplete string data"),
    ("bytes-for-no-elements", [1, 0], strings(b"a"), "unexpected number of string elements 1" + _END + ", expecting 0"),
    ("prefix", [1, 1], b"", _PREFIX + "expected 1 string elements"),
    ("over-max-batch", [9, 1], strings(*[b"a"] * 9), "inference request batch-size must be <= 8 for 'strings'"),
):
    _add(id, shape, content, text)

_BINARY = {"parameters": {"binary_data_output": True}}
_add("zero-length", [1, 1], strings(b""), '"data":[""]', 200)
_add("zero-lengths", [2, 20], strings(*[b""] * 40), '"shape":[2,20]', 200)
_add("nul-inside", [1, 1], strings(b"a\x00b"), "a\\u0000b", 200)
_add("nul-inside-binary", [1, 1], strings(b"a\x00b"), "a\x00b", 200, **_BINARY)
_add("nul-at-end-even", [1, 20], strings(*[b"ab\x00"] * 20), "ab\\u0000", 200)
_add("utf-8", [1, 1], strings("żółw".encode()), "żółw", 200)
_add("not-utf-8-binary", [1, 1], strings(b"\xff\xfe"), "binary_data_size", 200, **_BINARY)
_add("not-utf-8-json", [1, 1], strings(b'\xff"\\\n'), '\\"\\\\\\n', 200)
_add("no-elements", [1, 0], b"", '"shape":[1,0],"data":[]', 200)
_add("no-elements-binary", [1, 0], b"", '"shape":[1,0],"parameters":{"binary_data_size":0}', 200, **_BINARY)
_add("long", [1, 1], strings(b"x" * 100_000), "xxxx", 200)
T.add("json-strings", with_data('["a","","ż"]', "[1,3]", model="strings"), '["a","","ż"]', model="strings", status=200)

CASES = tuple(T.cases)
