from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.errors import InvalidArgument
from protocol.grpc_route import read_route


def message(name: str = "m", version: str = "", id: str = "", **more: Any) -> bytes:
    serialised: bytes = ModelInferRequest(
        model_name=name, model_version=version, id=id, inputs=[{"name": "X"}], raw_input_contents=[b"abc"], **more
    ).SerializeToString()
    return serialised


@pytest.mark.parametrize("wrap", [bytes, memoryview, bytearray])
@settings(max_examples=100, deadline=None)
@given(name=st.text(max_size=200), version=st.text(max_size=200), id=st.text(max_size=200))
def test_names_are_read_whatever_their_length(wrap: Any, name: str, version: str, id: str) -> None:
    assert read_route(wrap(message(name, version, id))) == (name, version, id)


@pytest.mark.parametrize(
    ("body", "route"),
    [
        (b"", ("", "", "")),
        (b"\x0a\x01m", ("m", "", "")),
        (b"\x12\x011\x0a\x01m", ("m", "1", "")),
        (b"\x1a\x017\x12\x011\x0a\x01m", ("m", "1", "7")),
        (b"\x3a\x03abc\x0a\x01m", ("m", "", "")),
        (b"\x0a\x01a\x0a\x01b\x12\x011", ("b", "1", "")),
        (b"\x0a\x01m\x1a\x017\x12\x011", ("m", "1", "7")),
        (b"\x0a\x01m\x78\x05\x12\x011", ("m", "1", "")),
        (b"\x8a\x00\x01m", ("m", "", "")),
        (b"\x0a\x81\x00m", ("m", "", "")),
    ],
)
def test_fields_may_come_in_any_order_and_form(body: bytes, route: tuple[str, str, str]) -> None:
    assert read_route(body) == route


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\x01\xff",
        b"\x0a\x01m\x12",
        b"\x0a\x01m\x12\x09",
        b"\x0a\x01m\x1a\x02\xff\xff",
        b"\x12\x01\xff",
        b"\x0a\x01m\x7b",
        b"\x00\x00",
        b"GET / HTTP/1.1",
    ],
)
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="failed to parse the request as a ModelInferRequest"):
        read_route(body)


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: b"\x0a\x01m" + tail))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        read_route(body)
    except InvalidArgument as error:
        assert error.grpc_code == 3
