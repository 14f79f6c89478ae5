"""The message of a load, which may hold files of many megabytes: read in steps between which other threads run."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.service.model_control import LoadRequest, check_repository_name
from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument
from protocol.protobuf_wire import LENGTH_DELIMITED, TruncatedMessage, walk

# What is parsed at once. A longer parameter is not given to the parser, which holds the interpreter's lock until it is
# done.
_STEP_BYTES: Final = 1 << 20
_MAX_FIELDS: Final = 1 << 16

_PARAMETERS: Final = pb.RepositoryModelLoadRequest.PARAMETERS_FIELD_NUMBER
_KEY: Final = 1
_VALUE: Final = 2
_STRING: Final = pb.ModelRepositoryParameter.STRING_PARAM_FIELD_NUMBER
_BYTES: Final = pb.ModelRepositoryParameter.BYTES_PARAM_FIELD_NUMBER


def read_load(message: Buffer) -> LoadRequest:
    """Return what a client wants loaded; for a thread, since it takes some time.

    Raises:
        DecodeError: it is no such message.
        ServingError: the parameters are not those of a load.
    """
    request = pb.RepositoryModelLoadRequest()
    parameters: dict[str, str | bytes | None] = {}
    try:
        for start, end, is_long in _steps(memoryview(message)):
            if is_long:
                key, value = _long_parameter(memoryview(message)[start:end])
                parameters[key] = value
                continue
            request.parameters.clear()
            request.MergeFromString(bytes(message[start:end]))
            parameters |= _short_parameters(request.parameters)
    except (TruncatedMessage, UnicodeDecodeError) as error:
        raise DecodeError(str(error)) from None
    check_repository_name(request.repository_name)
    return _load_request(request.model_name, parameters)


def _load_request(name: str, parameters: Mapping[str, str | bytes | None]) -> LoadRequest:
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == "config":
            if not isinstance(value, str):
                raise InvalidArgument("invalid value type for load parameter 'config', expected string_param.")
            config = value
        elif not key.startswith("file:"):
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
        elif not isinstance(value, bytes):
            raise InvalidArgument(f"invalid value type for load parameter '{key}', expected bytes_param.")
        else:
            files[key] = value
    return LoadRequest(name, config, files)


def _steps(view: memoryview) -> Iterator[tuple[int, int, bool]]:
    """Cut a message between its fields: yield parts with many of them, and with True where a long parameter is."""
    begun = ended = 0
    for count, (number, wire_type, start, value, end) in enumerate(walk(view, 0, len(view))):
        if count == _MAX_FIELDS:
            raise InvalidArgument(f"a load has more than {_MAX_FIELDS} fields")
        if end - begun > _STEP_BYTES:
            if begun < start:
                yield begun, start, False
            begun = start
        if end - start > _STEP_BYTES:
            if number != _PARAMETERS or wire_type != LENGTH_DELIMITED:
                raise TruncatedMessage("a long field that a load does not have")
            yield value, end, True
            begun = end
        ended = end
    if begun < ended:
        yield begun, ended, False


def _short_parameters(given: Mapping[str, Any]) -> dict[str, str | bytes | None]:
    parameters: dict[str, str | bytes | None] = {}
    for key, parameter in given.items():
        chosen = parameter.WhichOneof("parameter_choice")
        is_text = chosen in ("string_param", "bytes_param")
        parameters[key] = getattr(parameter, chosen) if is_text else None
    return parameters


def _long_parameter(entry: memoryview) -> tuple[str, str | bytes]:
    """Return the one long string or file of a parameter; others are no long ones."""
    found = {number: (value, end) for number, value, end in _strings(entry, 0, len(entry))}
    if set(found) != {_KEY, _VALUE}:
        raise TruncatedMessage("a parameter is a key and a value")
    begin, end = found[_KEY]
    chosen = _strings(entry, *found[_VALUE])
    if end - begin > _STEP_BYTES or not chosen or chosen[-1][0] not in (_STRING, _BYTES):
        raise TruncatedMessage("a long parameter is a string or bytes")
    key = str(entry[begin:end], "utf-8")
    kind, begin, end = chosen[-1]
    pieces = [bytes(entry[at : min(at + _STEP_BYTES, end)]) for at in range(begin, end, _STEP_BYTES)]
    content = b"".join(pieces)  # without the interpreter's lock
    return key, content if kind == _BYTES else content.decode()


def _strings(view: memoryview, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return number, begin and end of the few fields that a parameter, or its value, has."""
    fields: list[tuple[int, int, int]] = []
    for number, wire_type, _, value, after in walk(view, begin, end):
        if wire_type != LENGTH_DELIMITED or len(fields) == _VALUE:
            raise TruncatedMessage("a parameter has a field that is none of its own")
        fields.append((number, value, after))
    return fields
