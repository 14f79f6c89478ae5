"""The `parameters` of a request in JSON: the reserved keys, and those that are the model's own."""

from typing import Any, Final

from protocol.callers import read_callers
from protocol.errors import InvalidArgument
from protocol.infer import SEQUENCE_END, SEQUENCE_START, Parameter
from protocol.json_document import MAX_UINT64, NON_STRING, as_boolean, as_unsigned, unparsable
from protocol.limits import Limits

FORWARDED: Final = "eagleray_forwarded_headers"
"""Member of a request in which the ingress, which does not parse it, puts forwarded headers; it comes last, and wins.

A client that sets it itself gains nothing: these are parameters that it could have set as such.
"""


CALLERS: Final = "eagleray_callers"
"""Parameter that names the models which wait for a request of theirs, with "/" between them; see `callers`.

A client that sets it gains nothing: models refuse more than they would.
"""


BINARY_DATA_OUTPUT: Final = "binary_data_output"
OWN_BINARY_DATA_OUTPUT: Final = "eagleray_binary_data_output"
"""What the model's own `binary_data_output` is called on its way between processes: gRPC gives that name no meaning.

A client that sets it gains nothing: it could ask by gRPC.
"""


class RequestParameters:
    """What a request's parameters say. `custom` is None when there are no keys of the model's own."""

    __slots__ = ("binary_data_output", "callers", "custom", "flags", "priority", "sequence_id", "timeout_us")

    def __init__(self) -> None:
        self.sequence_id: int | str = 0
        self.flags = 0
        self.priority = 0
        self.timeout_us = 0
        self.binary_data_output = False
        self.callers: tuple[str, ...] = ()
        self.custom: dict[str, Parameter] | None = None


def read_parameters(document: Any, limits: Limits) -> RequestParameters:
    """Read the parameters of a parsed request.

    Raises:
        InvalidArgument: a reserved key has the wrong type, a key is Triton's own, there are too many.
    """
    found = RequestParameters()
    if not isinstance(document, dict) or ("parameters" not in document and FORWARDED not in document):
        return found
    members = document.get("parameters", {})
    if not isinstance(members, dict):
        raise InvalidArgument("failed to get request params.: attempt to get members for non-object")
    forwarded = document.get(FORWARDED)
    if isinstance(forwarded, dict):
        members = {**members, **forwarded}
    if len(members) > limits.max_parameters:
        raise InvalidArgument(f"request has {len(members)} parameters, more than {limits.max_parameters}")
    for key, value in members.items():
        _read(found, key, value, limits)
    return found


def _read(found: RequestParameters, key: str, value: Any, limits: Limits) -> None:
    if key == "sequence_id":
        found.sequence_id = _sequence_id(value, limits)
    elif key == "sequence_start":
        found.flags |= SEQUENCE_START if as_boolean(value, key) else 0
    elif key == "sequence_end":
        found.flags |= SEQUENCE_END if as_boolean(value, key) else 0
    elif key == "priority":
        found.priority = as_unsigned(value, key)
    elif key == "timeout":
        found.timeout_us = as_unsigned(value, key)
    elif key == BINARY_DATA_OUTPUT:
        found.binary_data_output = as_boolean(value, key)
    elif key == CALLERS and isinstance(value, str):
        found.callers = read_callers(value)
    elif key.startswith("triton_"):
        raise InvalidArgument(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )
    else:
        if found.custom is None:
            found.custom = {}
        own = BINARY_DATA_OUTPUT if key == OWN_BINARY_DATA_OUTPUT else key
        found.custom[own] = _custom(key, value)


def correlation_id_too_long(limits: Limits) -> InvalidArgument:
    """Return the error, with Triton's text."""
    return InvalidArgument(f"string correlation ID cannot be longer than {limits.max_correlation_id_bytes} characters")


def _sequence_id(value: Any, limits: Limits) -> int | str:
    if isinstance(value, str):
        if len(value.encode()) > limits.max_correlation_id_bytes:
            raise correlation_id_too_long(limits)
        return value
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise unparsable("sequence_id", NON_STRING)
    return value


def _custom(key: str, value: Any) -> Parameter:
    if isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else _as_double(key, value)
    raise InvalidArgument(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _as_double(key: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise unparsable(key, "number too big to be stored in double") from None
