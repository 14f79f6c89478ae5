"""What the way of a request within a sequence depends on: the sequence's id and flags, read without the tensors."""

import re
from typing import Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol import grpc_parameters, request_parameters
from protocol.errors import InvalidArgument
from protocol.infer import SEQUENCE_END, SEQUENCE_START
from protocol.limits import DEFAULT_LIMITS
from protocol.protobuf_wire import LENGTH_DELIMITED, fields
from protocol.request_parameters import RequestParameters

MAX_PARSED_BYTES: Final = 1 << 18
_PARAMETERS_FIELD: Final = 4
_ID: Final = re.compile(rb'"sequence_id"\s*:\s*(\d{1,20}|"(?:[^"\\]|\\.){0,1024}")')
_STARTS: Final = re.compile(rb'"sequence_start"\s*:\s*true')
_ENDS: Final = re.compile(rb'"sequence_end"\s*:\s*true')


class SequenceMark(NamedTuple):
    """The id of a sequence, and whether the request is its first or its last."""

    sequence_id: int | str
    starts: bool
    ends: bool


def http_sequence(header: bytes | memoryview) -> SequenceMark | None:
    """Return the sequence that the JSON of a request names, None without one.

    So it is for a header that is wrong: whoever runs the request says what is wrong with it. A long one, which holds
    tensors as JSON, is searched rather than parsed, since a parser would hold up other requests; so is one with NaN.
    """
    if len(header) > MAX_PARSED_BYTES:
        return _search(header)
    try:
        return _mark(request_parameters.read_parameters(orjson.loads(header), DEFAULT_LIMITS))
    except orjson.JSONDecodeError:
        return _search(header)
    except InvalidArgument:
        return None


def _search(header: bytes | memoryview) -> SequenceMark | None:
    found = _ID.search(header)
    if found is None:
        return None
    try:
        sequence_id = orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None
    starts, ends = _STARTS.search(header) is not None, _ENDS.search(header) is not None
    return SequenceMark(sequence_id, starts, ends) if sequence_id else None


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
