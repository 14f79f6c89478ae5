"""What the way of a gRPC inference request depends on: model, version and id, read without parsing the rest."""

from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.errors import InvalidArgument
from protocol.protobuf_wire import LENGTH_DELIMITED, fields, malformed

# Up to this size a message is parsed as a whole, which is faster than a walk over its fields.
_PARSED_BYTES = 1 << 14
_MAX_TEXT_BYTES = 1 << 16

Route = tuple[str, str, str]

_NAME, _VERSION, _ID = 0x0A, 0x12, 0x1A
_LATER = (0x22, 0x2A, 0x32, 0x3A)


def read_route(body: bytes | memoryview) -> Route:
    """Return the model's name, the version (empty: any) and the id (empty: none) of a serialised ModelInferRequest.

    Writers that put fields in the order of their numbers, as all known ones do, have them read at once: what comes
    behind the first field that is not one of these is not looked at. Of other messages all fields are walked over.

    Raises:
        InvalidArgument: the bytes are no such message, or one of the three is longer than 64 KiB.
    """
    try:
        if body[0] != _NAME or (size := body[1]) > 127:
            return _walk(body)
        at = 2 + size
        name = str(body[2:at], "utf-8")
        end = len(body)
        version = request_id = ""
        if at < end and body[at] == _VERSION and (size := body[at + 1]) < 128:
            start = at + 2
            at = start + size
            version = str(body[start:at], "utf-8")
        if at < end and body[at] == _ID and (size := body[at + 1]) < 128:
            start = at + 2
            at = start + size
            request_id = str(body[start:at], "utf-8")
    except (IndexError, UnicodeDecodeError):
        if not body:
            return "", "", ""
        raise malformed() from None
    if at == end or (at < end and body[at] in _LATER):
        return name, version, request_id
    return _walk(body)


def _walk(body: bytes | memoryview) -> Route:
    if len(body) <= _PARSED_BYTES:
        try:
            message = ModelInferRequest.FromString(bytes(body))
        except DecodeError:
            raise malformed() from None
        return message.model_name, message.model_version, message.id
    found = ["", "", "", ""]
    for number, wire_type, _, value, end in fields(body):
        if number <= 3 and wire_type == LENGTH_DELIMITED:
            if end - value > _MAX_TEXT_BYTES:
                field = ModelInferRequest.DESCRIPTOR.fields_by_number[number].name
                raise InvalidArgument(f"{field} of a ModelInferRequest has more than {_MAX_TEXT_BYTES} bytes")
            try:
                found[number] = str(body[value:end], "utf-8")
            except UnicodeDecodeError:
                raise malformed() from None
    return found[1], found[2], found[3]


def check_route(route: Route, name: str, version: str) -> None:
    """Raise `InvalidArgument` if a message, now parsed, names another model or version than it was routed by."""
    if route[:2] != (name, version):
        raise InvalidArgument("model_name and model_version of a ModelInferRequest must come before its other fields")
