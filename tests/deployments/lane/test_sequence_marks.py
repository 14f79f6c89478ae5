"""How the sequence of a request is read, of which nothing else is parsed."""

import time

import orjson
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest

from deployments.lane.sequence_lanes import read_mark
from deployments.lane.wire import GRPC, HTTP
from protocol.sequence_mark import SequenceMark


def grpc_body(**parameters):
    message = ModelInferRequest(model_name="m")
    for key, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[key], kind, value)
    message.inputs.add(name="X", datatype="FP32", shape=[1])
    message.raw_input_contents.append(b"\x2a\x00\x00\x00" * 1000)
    return message.SerializeToString()


MARKS = {
    "number": ({"sequence_id": 7, "sequence_start": True}, SequenceMark(7, True, False)),
    "text": ({"sequence_id": "a", "sequence_end": True}, SequenceMark("a", False, True)),
    "neither": ({"sequence_id": 7, "sequence_start": False, "other": 3}, SequenceMark(7, False, False)),
    "no id": ({"priority": 1}, None),
    "nothing": ({}, None),
    "wrong": ({"sequence_id": True}, None),
}


@pytest.mark.parametrize(("parameters", "expected"), MARKS.values(), ids=MARKS)
def test_the_sequence_is_read_from_both_wire_forms(parameters, expected):
    header = orjson.dumps({"inputs": [], "parameters": parameters})
    assert read_mark((header,), None, HTTP) == expected
    assert read_mark((header[:9], header[9:]), None, HTTP) == expected
    assert read_mark((header + b"binary",), len(header), HTTP) == expected
    assert read_mark((memoryview(header + b"binary"), b"more"), len(header), HTTP) == expected
    assert read_mark((grpc_body(**parameters),), None, GRPC) == expected


@pytest.mark.parametrize(("parameters", "expected"), MARKS.values(), ids=MARKS)
def test_the_sequence_is_found_in_much_json_without_parsing_it(parameters, expected):
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4_000_000], "data": [0.5] * 4_000_000}
    for header in (
        orjson.dumps({"inputs": [tensor], "parameters": parameters}),
        orjson.dumps({"parameters": parameters, "inputs": [tensor]}, option=orjson.OPT_INDENT_2),
    ):
        began_s = time.thread_time()
        assert read_mark((header,), None, HTTP) == expected
        assert time.thread_time() - began_s < 0.25  # a parser takes as long, and longer on a busy machine


def test_what_is_no_request_names_no_sequence():
    assert read_mark((b"{",), None, HTTP) is None
    assert read_mark((b"[]",), None, HTTP) is None
    assert read_mark((b"\xff\xff",), None, GRPC) is None
