"""An inference request made from arrays, for callers inside the cluster; checked like one that came by wire."""

from collections.abc import Container, Mapping, Sequence

import numpy as np

from protocol.datatypes import of_array
from protocol.errors import InvalidArgument
from protocol.infer import Array, InferRequest, Parameter, Reply
from protocol.normalise import check_outputs, normalise
from protocol.signature import Signature

_BYTES = (bytes, bytearray, memoryview)


def request_from_arrays(
    signature: Signature,
    inputs: Mapping[str, Array],
    reply: Reply,
    *,
    outputs: Sequence[str] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    id: str = "",
    bfloat16: Container[str] = (),
) -> InferRequest:
    """Return the request; the arrays are shaped as a client would send them and are not copied where they fit.

    No `outputs` are all of them.
    UINT16 stands for BF16 in the inputs that `bfloat16` names, and where the model takes BF16.

    Raises:
        InvalidArgument: with the text that an HTTP client would get.
    """
    if outputs is not None:
        check_outputs(signature, outputs)
    arrays = {name: _array(name, array) for name, array in inputs.items()}
    described = []
    for name, array in arrays.items():
        spec = signature.inputs.get(name)
        try:
            datatype = of_array(array).name
        except KeyError:
            raise InvalidArgument(f"input '{name}' has the type {array.dtype}, which no datatype stands for") from None
        if datatype == "UINT16" and (name in bfloat16 or (spec is not None and spec.datatype.name == "BF16")):
            datatype = "BF16"
        described.append((name, datatype, array.shape))
    rows, shapes = normalise(signature, described, id)
    shaped = {}
    for (name, array), shape in zip(arrays.items(), shapes, strict=True):
        if array.dtype.kind in "OSU":
            array = _bytes_objects(name, array)
        shaped[name] = array.reshape(shape)
    return InferRequest(
        shaped,
        rows,
        reply,
        id=id,
        outputs=tuple(outputs) if outputs else None,
        parameters=dict(parameters) if parameters else None,
    )


def plain_parameters(parameters: Mapping[str, object]) -> dict[str, Parameter]:
    """Return the parameters of a caller as what can be sent: NumPy's scalars, and classes of its own, as Python's.

    Raises:
        InvalidArgument: one is no number, truth value or text.
    """
    return {_plain_text("parameter name", name): _plain(name, value) for name, value in parameters.items()}


def plain_id(given: object) -> str:
    """Return the id of a caller's request; raises InvalidArgument when it is no text."""
    return _plain_text("request id", given)


def _plain(name: str, given: object) -> Parameter:
    value = given.item() if isinstance(given, np.generic) else given
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise InvalidArgument(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _plain_text(what: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidArgument(f"a {what} must be text, got {type(given).__name__}")
    return str.__str__(given)


def _array(name: str, given: object) -> Array:
    try:
        array = np.asarray(given)
    except ValueError:
        raise InvalidArgument(f"input '{name}' is no array: its rows are not of one length") from None
    return array.astype(array.dtype.newbyteorder("=")) if array.dtype.byteorder == ">" else array


def _bytes_objects(name: str, array: Array) -> Array:
    elements = array.ravel().tolist()
    if array.dtype.kind == "O" and set(map(type, elements)) <= {bytes}:
        return array
    objects = np.empty(array.size, object)
    try:
        objects[:] = [bytes(item) if isinstance(item, _BYTES) else str(item).encode() for item in elements]
    except Exception:  # whatever the `__str__` of an element raises, and text that UTF-8 cannot hold
        raise InvalidArgument(f"input '{name}' has an element that is no text") from None
    return objects.reshape(array.shape)
