"""The backends `sequence` and `dyna_sequence`: what the requests of a sequence bring is added up."""

import time
from collections.abc import Sequence

import numpy as np

from deployments.backends.backend import Batch, ModelInstance
from deployments.backends.testing.number import number
from deployments.core.clock import Clock
from protocol.errors import ServingError, Unsupported
from protocol.infer import InferRequest, InferResponse
from repository_loader.package import InstanceSpec, ModelPackage

SequenceKey = int | str


class SequenceBackend:
    """One accumulator for each row of a batch; START sets it. `execute_delay_ms` is how long a batch takes."""

    def __init__(self, clock: Clock | None = None) -> None:
        del clock  # every batch is answered when `execute` returns

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Return an instance for each spec; `Backend.load`."""
        delay_s = number(package.config, "execute_delay_ms") / 1000
        return [self.instance(spec.name, delay_s) for spec in specs]

    def instance(self, name: str, delay_s: float) -> ModelInstance:
        """Return an instance."""
        return SequenceInstance(name, delay_s)


class SequenceInstance:
    """Holds the accumulators of one instance."""

    def __init__(self, name: str, delay_s: float) -> None:
        self.name = name
        self.may_run_inline = not delay_s
        self._delay_s = delay_s
        self._sums: dict[SequenceKey, int] = {}

    def execute(self, batch: Batch) -> None:
        """Wait, then add; `ModelInstance.execute`."""
        if self._delay_s:
            time.sleep(self._delay_s)
        seen: set[SequenceKey] = set()
        results: list[InferResponse | ServingError] = []
        for row, request in enumerate(batch.requests):
            if not _flag(request, "READY"):
                results.append(InferResponse({}))
                continue
            key = self.key(row, request)
            results.append(self._add(key, request) if key not in seen else Unsupported(_TWICE))
            seen.add(key)
        batch.results = results

    def close(self) -> None:
        """Forget the accumulators."""
        self._sums.clear()

    def key(self, row: int, request: InferRequest) -> SequenceKey:
        """Return whose accumulator a request adds to."""
        return row

    def at_end(self, key: SequenceKey) -> int:
        """Return what the last request of a sequence adds besides its input, and forget the sequence."""
        return 0

    def _add(self, key: SequenceKey, request: InferRequest) -> InferResponse:
        taken = request.inputs["INPUT"]
        before = 0 if _flag(request, "START") else self._sums.get(key, 0)
        self._sums[key] = total = before + int(taken.sum(dtype=np.int64))
        if _flag(request, "END"):
            total += self.at_end(key)
        return InferResponse({"OUTPUT": np.full(taken.shape, total & _INT32_BITS, np.uint32).astype(np.int32)})


class DynaSequenceBackend(SequenceBackend):
    """One accumulator for each correlation id, which END adds too."""

    def instance(self, name: str, delay_s: float) -> ModelInstance:
        """Return an instance."""
        return DynaSequenceInstance(name, delay_s)


class DynaSequenceInstance(SequenceInstance):
    """Knows sequences by their ids, wherever in a batch they are."""

    def key(self, row: int, request: InferRequest) -> SequenceKey:
        """Return the correlation id; of a string its number, if it is one."""
        found = request.inputs["CORRID"].flat[0]
        if not isinstance(found, bytes):
            return int(found)
        return int(found) if found.isdigit() else found.decode()

    def at_end(self, key: SequenceKey) -> int:
        """Return the correlation id."""
        del self._sums[key]
        return key if isinstance(key, int) else 0


_INT32_BITS = 0xFFFFFFFF  # a sum of any size, as a correlation id may make it, overflows as in C++
_TWICE = "Execute() called with batch containing multiple inferences requests for the same Correlation ID"


def _flag(request: InferRequest, name: str) -> bool:
    array = request.inputs.get(name)
    return array is not None and bool(array.flat[0])
