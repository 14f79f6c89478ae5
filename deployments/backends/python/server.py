"""What a Python model's code asks of the server that runs it; a process of a model's own hands it on to its parent.

`pb_utils` knows nothing but this: `ModelModule.server` is set when a model is loaded. Metrics need no such seam: they
are counted in the rows of `metric.export_to`, which each process has for itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from protocol.errors import ServingError
from protocol.infer import Array, InferRequest, InferResponse, Parameter

CallResult = InferResponse | ServingError

Take = Callable[[CallResult, frozenset[str]], None]
"""Takes one response to a call, the last with `final` or as an error, and the names of outputs that are BF16.

It is called on any thread, one call at a time, and must not wait.
"""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request of a model's code to another model, checked by nobody yet.

    `inputs` are shaped as a client would send them; those in `bfloat16` are UINT16 that stands for BF16. `outputs` is
    None for all. The call ends when all `parents`, the requests on whose behalf it is made, are given up; without any
    it stands for itself. `callers` are the models that wait for it, the client's first. `namespace` is what the
    identifiers of models end in that share a name, and are in the repository of the model that calls. `traced` is the
    request whose trace the call is part of. Where the model `goes_on` before the call ends, it may write to its inputs.
    """

    model_name: str
    model_version: int
    inputs: Mapping[str, Array]
    bfloat16: frozenset[str]
    outputs: tuple[str, ...] | None
    request_id: str
    sequence_id: int | str
    flags: int
    timeout_us: int
    parameters: Mapping[str, Parameter] | None
    decoupled: bool
    parents: Sequence[InferRequest]
    callers: tuple[str, ...]
    namespace: str = ""
    traced: InferRequest | None = None
    goes_on: bool = False


class GiveUp(Protocol):
    """Gives a call up; one that has ended stays as it is."""

    def __call__(self, *, listens: bool = False) -> None:
        """Tell the called model, and end the call as cancelled; one that `listens` ends when the model ends it."""
        ...


class ModelServer(Protocol):
    """Calls of other models, and control of models; any thread may use it. A `ServingError` raised has Triton's text.

    A process that forwards this has to carry `ModelCall` (of the parents only which batch they are of), the results in
    their order, a call that is given up, and with each batch its requests' `callers` and traces.
    """

    def may_wait(self) -> bool:
        """Whether this thread may wait for an answer: not the one that has to bring it."""
        ...

    def call(self, call: ModelCall, take: Take) -> GiveUp:
        """Send a request; every outcome comes through `take`, and nothing is raised."""
        ...

    def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model, or load it again; blocks until it is ready.

        Raises:
            ServingError: it does not load, or the server's control mode does not allow this.
        """
        ...

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; blocks until no more requests go to it. Raises as `load_model`."""
        ...

    def is_model_ready(self, name: str, version: int) -> bool:
        """Return whether a model version (-1: any) takes requests; blocks, for seconds at most."""
        ...


class NamespacedServer:
    """A server as one model asks it: for models of its own repository first, where several have one of a name."""

    def __init__(self, server: ModelServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    def may_wait(self) -> bool:
        """Whether this thread may wait; see `ModelServer`."""
        return self._server.may_wait()

    def call(self, call: ModelCall, take: Take) -> GiveUp:
        """Send a request; see `ModelServer`."""
        return self._server.call(replace(call, namespace=self._namespace), take)

    def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load all models of a name, as clients do; see `ModelServer`."""
        self._server.load_model(name, config, files)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload all models of a name, as clients do; see `ModelServer`."""
        self._server.unload_model(name, unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether the model that would be called takes requests; see `ModelServer`."""
        own = self._server.is_model_ready(name + self._namespace, version)
        return own or self._server.is_model_ready(name, version)
