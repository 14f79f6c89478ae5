"""Where a message goes, read from its first bytes."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.grpc.routes import Routes
from protocol.errors import InvalidArgument, NotFound
from protocol.model_version import parse_version
from protocol.protobuf_wire import field_head


def field(number: int, text: bytes) -> bytes:
    return field_head(number, len(text)) + text


def message(name: str, version: str = "", request_id: str = "") -> bytes:
    serialised: bytes = pb.ModelInferRequest(
        model_name=name, model_version=version, id=request_id, raw_input_contents=[b"x" * 300]
    ).SerializeToString()
    return serialised


class Models:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.routes = Routes(self.find)

    def find(self, name: str, version: int) -> Any:
        self.asked.append((name, version))
        if name == "gone":
            raise NotFound("gone")
        return (name, version)


MESSAGES: dict[str, tuple[bytes, tuple[str, int]]] = {
    "a name": (message("m"), ("m", -1)),
    "a name and an id": (message("m", request_id="7"), ("m", -1)),
    "a version": (message("m", "3"), ("m", 3)),
    "a long name": (message("m" * 127, "1"), ("m" * 127, 1)),
    "a name too long to be kept": (message("m" * 128, "1"), ("m" * 128, 1)),
    "nothing but a name": (field(1, b"m"), ("m", -1)),
    "version first": (field(2, b"4") + field(1, b"m"), ("m", 4)),
    "contents first": (field(7, b"x" * 300) + field(1, b"m"), ("m", -1)),
    "no name": (field(7, b"x"), ("", -1)),
    "nothing": (b"", ("", -1)),
}


@pytest.mark.parametrize(("sent", "expected"), MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("form", [bytes, memoryview])
def test_finds_the_target(sent: bytes, expected: tuple[str, int], form: Any) -> None:
    models = Models()
    for _ in range(2):
        found: Any = models.routes.find(form(sent))
        assert found == expected


def test_asks_once_whatever_the_id() -> None:
    models = Models()
    for request_id in ("", "1", "2"):
        models.routes.find(message("m", "1", request_id))
    assert models.asked == [("m", 1)]
    models.routes.clear()
    models.routes.find(message("m", "1"))
    assert len(models.asked) == 2


def test_does_not_keep_what_was_not_found() -> None:
    models = Models()
    for _ in range(2):
        with pytest.raises(NotFound):
            models.routes.find(message("gone"))
    assert len(models.asked) == 2


def test_keeps_a_bounded_number() -> None:
    models = Models()
    for number in range(1, 3000):
        models.routes.find(message("m", str(number)))
    assert len(models.routes._known) <= 1024


@pytest.mark.parametrize("sent", [b"\xff", b"\x0a", b"\x0a\x05m", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01m\x12\x7f"])
def test_refuses_what_is_no_request(sent: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Models().routes.find(sent)


VERSIONS: dict[str, str] = {
    "abc": "(details: stol)",
    "1.5": "(details: stol)",
    "９": "(details: stol)",
    "+-3": "(details: stol)",
    "9" * 30: "(details: stol)",
    "9223372036854775808": "(details: stol)",
    "-2": "invalid model version specified '-2' , version",
}


@pytest.mark.parametrize(("version", "number"), {"": -1, "0": 0, "7": 7, "9223372036854775807": 2**63 - 1}.items())
def test_versions(version: str, number: int) -> None:
    assert parse_version(version) == number


@pytest.mark.parametrize(("version", "text"), VERSIONS.items(), ids=VERSIONS)
def test_bad_versions(version: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_version(version)
    assert text in raised.value.message
