"""The backend `square`: for IN = n, n responses of OUT = n."""

from collections.abc import Iterator, Sequence

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelInstance
from deployments.backends.testing.number import number
from deployments.backends.testing.timed_responses import Step, TimedInstance
from deployments.core.clock import Clock
from protocol.errors import InvalidArgument, Unknown
from protocol.infer import InferRequest
from repository_loader.package import InstanceSpec, ModelPackage


class SquareBackend:
    """Each response takes `CUSTOM_INFER_DELAY_NS` and `CUSTOM_OUTPUT_DELAY_NS`.

    The last `CUSTOM_EMPTY_COUNT` of a request are not sent, those before them fail: `CUSTOM_FAIL_COUNT`.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Return an instance for each spec; `Backend.load`."""
        assert self._clock is not None
        return [SquareInstance(spec.name, self._clock, package.config) for spec in specs]


class SquareInstance(TimedInstance):
    """Sends the number as often as it says."""

    def __init__(self, name: str, clock: Clock, config: ModelConfig) -> None:
        super().__init__(name, clock, config.model_transaction_policy.decoupled)
        self._infer_s = number(config, "CUSTOM_INFER_DELAY_NS") / 1e9
        self._output_s = number(config, "CUSTOM_OUTPUT_DELAY_NS") / 1e9
        self._fail_count = number(config, "CUSTOM_FAIL_COUNT")
        self._empty_count = number(config, "CUSTOM_EMPTY_COUNT")

    def plan(self, request: InferRequest) -> Iterator[Step]:
        """Yield a step for each response."""
        taken = request.inputs["IN"]
        if taken.size != 1:
            raise InvalidArgument("unexpected shape for IN input")
        count = int(taken.flat[0])
        first_empty = count - self._empty_count
        for index in range(count):
            if index >= first_empty:
                yield Step(self._infer_s, None)
            elif index >= first_empty - self._fail_count:
                yield Step(self._infer_s + self._output_s, Unknown("simulated failure"))
            else:
                yield Step(self._infer_s + self._output_s, {"OUT": np.full(taken.shape, count, np.int32)})
