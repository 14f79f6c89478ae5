"""Large inputs of gRPC requests, which no parse of the whole may keep the interpreter for."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import InferTensorContents, ModelInferRequest

from protocol.bytes_tensor import encode_elements
from protocol.errors import InvalidArgument
from protocol.grpc_contents import typed_bytes
from protocol.grpc_request import SplitMessage
from protocol.large_input import LARGE_BYTES
from protocol.limits import Limits
from protocol.protobuf_wire import field_head, varint

MANY = 150_000
ELEMENTS = [str(number).encode() * (1 + number % 50) for number in range(MANY)]


def request(elements: list[bytes]) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m")
    message.inputs.add(name="FIRST", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    message.inputs.add(name="A", datatype="BYTES", shape=[len(elements)]).contents.bytes_contents.extend(elements)
    return message


def read(body: bytes, limits: Limits) -> list[bytes]:
    split = SplitMessage(body, limits)
    inputs = zip(split.message.inputs, split.strings, strict=True)
    return [typed_bytes(tensor, strings, "m", limits) for tensor, strings in inputs]


def test_strings_are_those_that_were_sent_and_few_at_a_time_are_parsed() -> None:
    body = request(ELEMENTS).SerializeToString()
    assert read(body, Limits()) == [encode_elements([b"a"]), encode_elements(ELEMENTS)]
    assert len(SplitMessage(body, Limits()).message.inputs[1].contents.bytes_contents) < MANY // 2


def test_strings_in_several_contents_keep_their_order() -> None:
    parts = [ELEMENTS[:10], ELEMENTS[10:], ELEMENTS[:20]]
    written = [InferTensorContents(bytes_contents=part).SerializeToString() for part in parts]
    tensor = request([]).inputs[1].SerializeToString() + b"".join(field_head(5, len(each)) + each for each in written)
    assert read(field_head(5, len(tensor)) + tensor, Limits()) == [encode_elements([*parts[0], *parts[1], *parts[2]])]


MANY_STRINGS = InferTensorContents(bytes_contents=ELEMENTS[:70_000]).SerializeToString()
LONG_STRING = field_head(8, 2 * LARGE_BYTES) + b"y" * (2 * LARGE_BYTES)


def in_more_bytes(number: int) -> bytes:
    written = varint(number)
    return written[:-1] + bytes([written[-1] | 128, 0])


def string(text: bytes, long_tag: bool, long_size: bool) -> bytes:
    tag = in_more_bytes(8 << 3 | 2) if long_tag else varint(8 << 3 | 2)
    return tag + (in_more_bytes(len(text)) if long_size else varint(len(text))) + text


strings = st.builds(string, st.binary(max_size=200), st.booleans(), st.booleans())
others = st.sampled_from([b"\x98\x3e\x01", field_head(3, 0), MANY_STRINGS, LONG_STRING])
contents = st.lists(strings | others, max_size=6).map(b"".join)


@settings(max_examples=30, deadline=None)
@given(st.lists(contents, min_size=1, max_size=3))
def test_strings_are_those_of_a_plain_parse_however_they_are_written(parts: list[bytes]) -> None:
    tensor = request([]).inputs[1].SerializeToString() + b"".join(field_head(5, len(each)) + each for each in parts)
    body = field_head(5, len(tensor)) + tensor
    plain = ModelInferRequest.FromString(body).inputs[0].contents.bytes_contents
    assert read(body, Limits()) == [encode_elements(plain)]


def test_many_strings_with_something_in_between_keep_their_order() -> None:
    written = field_head(3, 0) + MANY_STRINGS + field_head(3, 0) + MANY_STRINGS
    tensor = request([]).inputs[1].SerializeToString() + field_head(5, len(written)) + written
    assert read(field_head(5, len(tensor)) + tensor, Limits()) == [encode_elements(2 * ELEMENTS[:70_000])]


def test_more_between_strings_than_is_walked_over_is_refused() -> None:
    written = LONG_STRING + 2_100 * (field_head(3, 0) + field_head(8, 0))
    tensor = request([]).inputs[1].SerializeToString() + field_head(5, len(written)) + written
    with pytest.raises(InvalidArgument, match="request has more than 4096 fields"):
        SplitMessage(field_head(5, len(tensor)) + tensor, Limits())


def test_strings_are_counted_over_all_parts() -> None:
    body = request(ELEMENTS).SerializeToString()
    assert read(body, Limits(json_max_elements=MANY))
    with pytest.raises(InvalidArgument, match=f"contents of input 'A' have more than {MANY - 1} elements"):
        read(body, Limits(json_max_elements=MANY - 1))


def test_numbers_beside_many_strings_are_refused() -> None:
    numbers = InferTensorContents(fp64_contents=[1]).SerializeToString()
    tensor = request(ELEMENTS).inputs[1].SerializeToString() + field_head(5, len(numbers)) + numbers
    with pytest.raises(InvalidArgument, match="of type 'FP64', expected datatype 'BYTES'"):
        read(field_head(5, len(tensor)) + tensor, Limits())


def add_input_parameters(message: ModelInferRequest) -> None:
    for number in range(LARGE_BYTES // 8):
        message.inputs[0].parameters[str(number)].int64_param = number


def add_output_parameters(message: ModelInferRequest) -> None:
    output = message.outputs.add(name="B")
    for number in range(LARGE_BYTES // 8):
        output.parameters[str(number)].int64_param = number


def add_unknown_fields(message: ModelInferRequest) -> None:
    message.inputs[0].contents.MergeFromString(b"\x98\x3e\x01" * LARGE_BYTES)


def add_unknown_fields_of_a_parameter(message: ModelInferRequest) -> None:
    message.parameters["a"].MergeFromString(b"\x98\x3e\x01" * LARGE_BYTES)


def add_unknown_fields_of_an_inputs_parameter(message: ModelInferRequest) -> None:
    message.inputs[0].parameters["a"].MergeFromString(b"\x98\x3e\x01" * LARGE_BYTES)


@pytest.mark.parametrize(
    "add",
    [
        add_input_parameters,
        add_output_parameters,
        add_unknown_fields,
        add_unknown_fields_of_a_parameter,
        add_unknown_fields_of_an_inputs_parameter,
    ],
)
def test_more_fields_in_a_part_than_are_walked_over_are_refused(add: Callable[[ModelInferRequest], None]) -> None:
    message = request([b"b"])
    add(message)
    with pytest.raises(InvalidArgument, match="request has more than 4096 fields"):
        SplitMessage(message.SerializeToString(), Limits())


def test_a_long_parameter_is_read() -> None:
    message = request([b"b"])
    message.parameters["a"].string_param = message.inputs[0].parameters["b"].string_param = "a" * 4 * LARGE_BYTES
    assert SplitMessage(message.SerializeToString(), Limits()).message == message


@pytest.mark.parametrize("cut_off", [1, 2, 100])
def test_contents_that_are_cut_off_are_refused(cut_off: int) -> None:
    contents = InferTensorContents(bytes_contents=ELEMENTS).SerializeToString()[:-cut_off]
    tensor = field_head(5, len(contents)) + contents
    with pytest.raises(InvalidArgument, match="failed to parse the request"):
        SplitMessage(field_head(5, len(tensor)) + tensor, Limits())
