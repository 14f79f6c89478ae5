"""The backend `repeat`: a response for each element of IN, after the milliseconds that DELAY says."""

from collections.abc import Iterator, Sequence

import numpy as np

from deployments.backends.backend import ModelInstance
from deployments.backends.testing.expectations import expect, expect_scalar, expect_tensors
from deployments.backends.testing.timed_responses import Step, TimedInstance
from deployments.core.clock import Clock
from protocol.errors import InvalidArgument
from protocol.infer import InferRequest
from protocol.normalise import dims_text
from repository_loader.package import InstanceSpec, ModelPackage

_INPUTS = (("IN", "INT32"), ("DELAY", "UINT32"), ("WAIT", "UINT32"))
_OUTPUTS = (("OUT", "INT32"), ("IDX", "UINT32"))


class RepeatBackend:
    """Sends OUT, the element, and IDX, its place; the instance is busy for the milliseconds that WAIT says."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Check the tensors and return an instance for each spec; `Backend.load`."""
        config = package.config
        expect(config.max_batch_size == 0, "repeat backend only supports models with max_batch_size == 0")
        expect_tensors("input", config.input, _INPUTS)
        expect_tensors("output", config.output, _OUTPUTS)
        taken, delay, wait = config.input
        expect(len(taken.dims) == 1, f"expected IN shape to have one dimension, got {dims_text(taken.dims)}")
        expect(
            list(taken.dims) == list(delay.dims),
            f"expected IN and DELAY shape to match, got {dims_text(taken.dims)} and {dims_text(delay.dims)}",
        )
        for tensor in (wait, *config.output):
            expect_scalar(tensor)
        assert self._clock is not None
        decoupled = config.model_transaction_policy.decoupled
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
