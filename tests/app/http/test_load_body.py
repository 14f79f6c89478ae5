"""The body of a load: the same parameters whether its strings are long or short, and no long hold of the interpreter."""

import base64
import json
import random
from typing import Any

import pytest

from app.http.load_body import read_load
from app.service.model_control import LoadRequest
from protocol.errors import InvalidArgument, ServingError
from tests.holds import assert_holds_are_short

FILE = random.Random(1).randbytes(3 << 20)


def load(parameters: Any, **more: Any) -> LoadRequest:
    text = json.dumps({"parameters": parameters, **more}).encode()
    half = len(text) // 2
    return read_load("m", [text[:half], text[half:]])


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 49_149, 49_150, 49_152, (3 << 18) - 1, 3 << 18, (3 << 18) + 1, 3 << 20])
def test_files_of_any_length(size: int) -> None:
    files = {"file:1/a": FILE[:size], "file:1/b": b"b", "file:2/a": FILE[: size // 2]}
    config = json.dumps({"name": "m", "note": 'a "quoted" word', "path": "\\"})
    asked = load({"config": config, **{key: encoded(content) for key, content in files.items()}})
    assert asked == LoadRequest("m", config, files)


def test_slashes_may_be_escaped() -> None:
    text = json.dumps({"parameters": {"file:1/a": encoded(FILE)}}).replace("/", "\\/").encode()
    assert read_load("m", [text]).files == {"file:1/a": FILE}


def test_a_long_string_without_escapes_may_be_the_configuration() -> None:
    assert load({"config": "x" * 100_000}).config == "x" * 100_000


def test_without_a_body_the_repositorys_files_are_loaded() -> None:
    assert read_load("m", []) == LoadRequest("m")


@pytest.mark.parametrize("at", [10, (1 << 20) - 1, (1 << 20) - 2, -10])
def test_what_is_not_base64_anywhere_is_refused(at: int) -> None:
    text = encoded(FILE)
    for wrong in ("?", "=", "é"):
        with pytest.raises(InvalidArgument, match="Unable to parse 'file:1/a': it is not base64"):
            load({"file:1/a": text[:at] + wrong + text[at:][1:]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"parameters":{"file:1/a":"%b"}' % (b"A" * 100_000), "failed to parse the request JSON buffer"),
        (b'{"parameters":{"file:1/a":"%b' % (b"A" * 100_000), "failed to parse the request JSON buffer"),
        (b'{"parameters":["%b"]}' % (b"A" * 100_000), "Unable to parse 'parameters'"),
        (b'{"parameters":{"%b":""}}' % (b"A" * 100_000), "unexpected error on creating Triton parameter"),
        (b'{"parameters":{"config":"%b"}}' % (b"\xff" * 100_000), "Invalid encoding in string"),
        (b'"' * (1 << 20), "failed to parse the request JSON buffer"),
        (b"[]", "expected a JSON object"),
    ],
)
def test_what_is_malformed_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ServingError) as raised:
        read_load("m", [text])
    assert message in raised.value.message


def test_no_other_thread_waits_for_long() -> None:
    text = b'{"parameters":{"config":"{}","file:1/a":"%b"}}' % base64.b64encode(FILE * 14)
    pieces = [text[at : at + (1 << 20)] for at in range(0, len(text), 1 << 20)]
    assert_holds_are_short(lambda: read_load("m", pieces))
