"""What the way of a request within a sequence depends on: the sequence's id and flags, read without the tensors."""

from typing import NamedTuple

import orjson
from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol import grpc_parameters, request_parameters
from protocol.errors import InvalidArgument
from protocol.infer import SEQUENCE_END, SEQUENCE_START
from protocol.limits import DEFAULT_LIMITS
from protocol.protobuf_wire import LENGTH_DELIMITED, fields
from protocol.request_parameters import RequestParameters

_PARAMETERS_FIELD = 4


class SequenceMark(NamedTuple):
    """The id of a sequence, and whether the request is its first or its last."""

    sequence_id: int | str
    starts: bool
    ends: bool


def http_sequence(header: bytes | memoryview) -> SequenceMark | None:
    """Return the sequence that the JSON of a request names, None without one.

    So it is for a header that is wrong: whoever runs the request says what is wrong with it.
    """
    try:
        return _mark(request_parameters.read_parameters(orjson.loads(header), DEFAULT_LIMITS))
    except (orjson.JSONDecodeError, InvalidArgument):
        return None


def grpc_sequence(body: bytes | memoryview) -> SequenceMark | None:
    """Return the sequence that a serialised ModelInferRequest names, None without one, and of a wrong message."""
    try:
        parameters = b"".join(
            bytes(body[start:end])
            for number, wire_type, start, _, end in fields(body)
            if number == _PARAMETERS_FIELD and wire_type == LENGTH_DELIMITED
        )
        message = ModelInferRequest.FromString(parameters)
        return _mark(grpc_parameters.read_parameters(message.parameters, DEFAULT_LIMITS))
    except (DecodeError, InvalidArgument):
        return None


def _mark(parameters: RequestParameters) -> SequenceMark | None:
    if not parameters.sequence_id:
        return None
    flags = parameters.flags
    return SequenceMark(parameters.sequence_id, bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END))
