"""The message of a load: what protobuf reads in it, whatever its length, and no long hold of the interpreter."""

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.grpc.load_message import read_load
from app.service.model_control import LoadRequest
from protocol.errors import InvalidArgument, ServingError, Unsupported
from protocol.protobuf_wire import field_head
from tests.holds import assert_holds_are_short

FILE = random.Random(1).randbytes(3 << 20)


def message(parameters: dict[str, Any], name: str = "m", **more: Any) -> bytes:
    request = pb.RepositoryModelLoadRequest(model_name=name, **more)
    for key, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", bytes: "bytes_param"}[type(value)]
        setattr(request.parameters[key], kind, value)
    return request.SerializeToString()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 30, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_files_of_any_length(size: int, kind: Any) -> None:
    files = {"file:1/a": FILE[:size], "file:1/b": b"b", "file:2/a": FILE[: size // 2]}
    assert read_load(kind(message({"config": "{}", **files}))) == LoadRequest("m", "{}", files)


def test_many_files_together_are_long() -> None:
    files = {f"file:1/{number}": FILE[number : number + 5000] for number in range(1000)}
    assert read_load(message(files)) == LoadRequest("m", None, files)


def test_without_parameters_the_repositorys_files_are_loaded() -> None:
    assert read_load(b"\x12\x01m") == LoadRequest("m")
    assert read_load(b"") == LoadRequest("")


def test_of_a_name_or_parameter_that_is_given_twice_the_last_counts() -> None:
    twice = message({"file:a": FILE, "config": "1"}) + message({"file:a": FILE[1:], "config": "2"}, "n")
    assert read_load(twice) == LoadRequest("n", "2", {"file:a": FILE[1:]})


def test_a_long_string_may_be_the_configuration() -> None:
    assert read_load(message({"config": "ż" * 1_000_000})).config == "ż" * 1_000_000


REFUSED: dict[str, tuple[bytes, type[Exception], str]] = {
    "a repository": (message({}, repository_name="r"), Unsupported, "'repository_name' specification"),
    "bytes as configuration": (
        message({"config": b"x"}),
        InvalidArgument,
        "for load parameter 'config', expected string",
    ),
    "much as configuration": (
        message({"config": FILE}),
        InvalidArgument,
        "for load parameter 'config', expected string",
    ),
    "a string as file": (
        message({"file:a": "x"}),
        InvalidArgument,
        "for load parameter 'file:a', expected bytes_param.",
    ),
    "a long string as file": (message({"file:a": "x" * (2 << 20)}), InvalidArgument, "for load parameter 'file:a'"),
    "a number as file": (message({"file:a": 1}), InvalidArgument, "for load parameter 'file:a', expected bytes_param."),
    "an unknown parameter": (message({"x": True}), InvalidArgument, "unrecognized load parameter 'x'."),
    "a long unknown parameter": (message({"x": FILE}), InvalidArgument, "unrecognized load parameter 'x'."),
    "too many fields": (b"\x1a\x00" * 70_000, InvalidArgument, "a load has more than 65536 fields"),
    "no message": (b"\xff" * 100, DecodeError, ""),
    "a name that is not UTF-8": (b"\x12\x01\xff", DecodeError, ""),
    "a long name": (field_head(2, 2 << 20) + bytes(2 << 20), DecodeError, ""),
    "a long key that is not UTF-8": (message({"file:\x00": FILE}).replace(b"file:\0", b"file:\xff"), DecodeError, ""),
    "a long parameter cut short": (message({"file:a": FILE})[:-1], DecodeError, ""),
    "a long parameter of nothing": (field_head(3, 2 << 20) + bytes(2 << 20), DecodeError, ""),
    "a long parameter without a key": (b"\x1a" + message({"file:a": FILE})[11:], DecodeError, ""),
}


@pytest.mark.parametrize(("given", "kind", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_load_is_refused(given: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises((ServingError, DecodeError)) as raised:
        read_load(given)
    assert isinstance(raised.value, kind)
    assert words in str(raised.value)


def test_no_other_thread_waits_for_long() -> None:
    given = memoryview(message({"config": "{}", "file:1/a": FILE * 14, "file:1/b": FILE * 7}))
    assert_holds_are_short(lambda: read_load(given))
