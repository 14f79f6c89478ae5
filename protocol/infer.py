"""An inference request and its response, as every scheduler and backend sees them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from protocol.device_input import DeviceInput
from protocol.errors import ServingError
from protocol.trace import Trace

Parameter = bool | int | float | str
Array = np.ndarray[Any, np.dtype[Any]]

SEQUENCE_START = 1
SEQUENCE_END = 2
RESCHEDULED = 4
"""Set by a backend: the request of an iterative sequence is to run again. No client can set it."""
COPIED = 8
"""Set for what a shadow gets: the request is of a copy of its sequence, which is none that a client knows."""


class InferResponse:
    """One response: output arrays by name, in the backend's order, and what is sent along with them.

    `outputs` hold arrays shaped as the client sees them, the batch dimension included. `parameters` is None when there
    are none. `final` is False only for a response of a decoupled model that more will follow.
    """

    __slots__ = ("final", "outputs", "parameters")

    def __init__(
        self, outputs: dict[str, Array], parameters: dict[str, Parameter] | None = None, final: bool = True
    ) -> None:
        self.outputs = outputs
        self.parameters = parameters
        self.final = final


class StreamedResponse(InferResponse):
    """One of any number of responses of a decoupled model, or its end without one, which has None as `parameters`.

    `output_ns` is how long its outputs took to be read.
    """

    __slots__ = ("output_ns",)

    def __init__(
        self, outputs: dict[str, Array], parameters: dict[str, Parameter] | None, final: bool, output_ns: int
    ) -> None:
        super().__init__(outputs, parameters, final)
        self.output_ns = output_ns


_NOWHERE: Final[Mapping[str, memoryview]] = {}

Reply = Callable[["InferRequest", InferResponse | ServingError], None]


class InferRequest:
    """One request, decoded once and checked against the model's signature before any scheduler sees it.

    `inputs` maps input names to arrays shaped as the model sees them (after `reshape`, batch dimension included);
    an optional input that was not sent is absent. Those that the model gets as they lie in the memory of a GPU are in
    `devices` instead, None where there are none. `rows` is the batch size, 1 for a model that does not batch.
    `outputs` names the requested outputs, None for all. `timeout_us` and `priority` are 0 when not given.
    `reply` is called on the event loop's thread, once for each response, the last with `final` or with an error.
    `regions` are where in shared memory the client wants outputs; they stay until it is answered, though the client may
    unregister them before. `places` are those that a backend may write to, None for none: it returns an array over the
    place of an output, and nothing is copied. `room` gives memory of that kind for a large output of so many bytes,
    from which the response need not be copied, or None; where it is None itself, nothing would be saved.
    `callers` are the models that wait for the answer, the client's first, where a model has called this one: entries
    as `caller` makes them.
    `over_lane` says that it comes from another process, which asks another replica when the queue here is full, and
    counts what none takes. `started_ns` is when a decoupled model's instance got the request, 0 before. `trace` is None
    for a request that is not traced. Times are monotonic nanoseconds.
    """

    __slots__ = (
        "callers",
        "cancelled",
        "context",
        "devices",
        "encoding",
        "flags",
        "id",
        "inputs",
        "outputs",
        "over_lane",
        "parameters",
        "places",
        "priority",
        "queued_ns",
        "received_ns",
        "regions",
        "reply",
        "room",
        "rows",
        "sequence_id",
        "started_ns",
        "timeout_us",
        "trace",
    )

    def __init__(
        self,
        inputs: dict[str, Array],
        rows: int,
        reply: Reply,
        *,
        id: str = "",
        outputs: tuple[str, ...] | None = None,
        parameters: dict[str, Parameter] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        flags: int = 0,
        context: Any = None,
        encoding: Any = None,
        callers: tuple[str, ...] = (),
        places: dict[str, memoryview] | None = None,
        devices: dict[str, DeviceInput] | None = None,
    ) -> None:
        self.inputs = inputs
        self.devices = devices
        self.rows = rows
        self.reply = reply
        self.id = id
        self.outputs = outputs
        self.parameters = parameters
        self.priority = priority
        self.timeout_us = timeout_us
        self.sequence_id = sequence_id
        self.flags = flags
        self.context = context  # what the transport needs to answer; the core never looks at it
        self.encoding = encoding  # what the codec that decoded it needs to encode its responses
        self.callers = callers
        self.places = places
        self.regions: Mapping[str, memoryview] = _NOWHERE if places is None else places
        self.cancelled = False
        self.over_lane = False
        self.room: Callable[[int], memoryview | None] | None = None
        self.trace: Trace | None = None
        self.started_ns = 0
        self.received_ns = 0
        self.queued_ns = 0


def read_only(array: Array) -> Array:
    """Return the same memory for those that may only read it; a model that writes to its inputs makes a copy."""
    array = array.view()
    array.flags.writeable = False
    return array
