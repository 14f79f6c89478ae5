"""The backend `implicit_state`: tries what a backend may do with the states that the server keeps for it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from deployments.backends.backend import Batch, ModelInstance
from deployments.core.clock import Clock
from protocol.errors import InvalidArgument, ServingError, Unsupported
from protocol.infer import InferRequest, InferResponse
from repository_loader.package import InstanceSpec, ModelPackage

NON_EXISTENT: Final = 0
NO_UPDATE: Final = 1
SAME_BUFFER: Final = 2
GROWABLE: Final = 3


class ImplicitStateBackend:
    """TEST_CASE says what is tried: a state that is not configured, none returned, or one buffer for in and out."""

    def __init__(self, clock: Clock | None = None) -> None:
        del clock  # every batch is answered when `execute` returns

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Return an instance for each spec; `Backend.load`."""
        has_states = bool(package.config.sequence_batching.state)
        return [ImplicitStateInstance(spec.name, package.name, has_states) for spec in specs]


class ImplicitStateInstance:
    """Remembers where the state lay."""

    def __init__(self, name: str, model_name: str, has_states: bool) -> None:
        self.name = name
        self.may_run_inline = True
        self._model_name = model_name
        self._has_states = has_states
        self._address = 0

    def execute(self, batch: Batch) -> None:
        """Try what each request asks for; `ModelInstance.execute`."""
        results: list[InferResponse | ServingError] = []
        for request in batch.requests:
            try:
                results.append(self._run(request))
            except ServingError as error:
                results.append(error)
        batch.results = results

    def close(self) -> None:
        """Hold nothing."""

    def _run(self, request: InferRequest) -> InferResponse:
        inputs = request.inputs
        if inputs["START"].flat[0]:
            self._address = 0
        case = int(inputs["TEST_CASE"].flat[0])
        if case == NON_EXISTENT:
            if self._has_states:
                raise InvalidArgument("state 'undefined_state' is not a valid state name.")
            raise InvalidArgument(
                f"unable to add state 'undefined_state'. State configuration is missing for model '{self._model_name}'."
            )
        if case == GROWABLE:
            raise Unsupported("growable memory should always provide memory in GPU")
        state = inputs["INPUT_STATE"]
        if case == NO_UPDATE:
            total = inputs["INPUT"].flat[0] + state.flat[0]
            return InferResponse({"OUTPUT": np.full(inputs["INPUT"].shape, total, np.int32)})
        if self._address not in (0, state.ctypes.data):
            raise Unsupported("Input and output state are using different buffers.")
        self._address = state.ctypes.data
        return InferResponse({"OUTPUT_STATE": state})
