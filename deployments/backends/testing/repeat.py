"""The backend `repeat`: a response for each element of IN, after the milliseconds that DELAY says."""

from collections.abc import Iterator, Sequence

import numpy as np

from deployments.backends.backend import ModelInstance
from deployments.backends.testing.timed_responses import Step, TimedInstance
from deployments.core.clock import Clock
from protocol.errors import InvalidArgument
from protocol.infer import InferRequest
from protocol.normalise import dims_text
from repository_loader.package import InstanceSpec, ModelPackage


class RepeatBackend:
    """Sends OUT, the element, and IDX, its place; the instance is busy for the milliseconds that WAIT says."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Return an instance for each spec; `Backend.load`."""
        assert self._clock is not None
        decoupled = package.config.model_transaction_policy.decoupled
        return [RepeatInstance(spec.name, self._clock, decoupled) for spec in specs]


class RepeatInstance(TimedInstance):
    """Repeats IN."""

    def busy_s(self, request: InferRequest) -> float:
        """Return WAIT."""
        return float(request.inputs["WAIT"][0]) / 1000

    def plan(self, request: InferRequest) -> Iterator[Step]:
        """Yield a step for each element."""
        taken, delays_ms = request.inputs["IN"], request.inputs["DELAY"]
        if taken.shape != delays_ms.shape:
            raise InvalidArgument(
                f"expected IN and DELAY shape to match, got {dims_text(taken.shape)} and {dims_text(delays_ms.shape)}"
            )
        for index, (value, delay_ms) in enumerate(zip(taken, delays_ms, strict=True)):
            outputs = {"OUT": np.array([value], np.int32), "IDX": np.array([index], np.uint32)}
            yield Step(float(delay_ms) / 1000, outputs)
