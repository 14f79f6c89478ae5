"""A sequence scheduler over instances of Triton's `dyna_sequence` test backend, driven by hand."""

import numpy as np
import pytest

from deployments.backends.testing.accumulators import DynaSequenceInstance
from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.sequence import SequenceScheduler
from protocol.errors import ServingError
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from tests.deployments.fakes import FakeClock, FakePool, config_of

START, END, ONLY = SEQUENCE_START, SEQUENCE_END, SEQUENCE_START | SEQUENCE_END

CONTROLS = "".join(
    f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {values} }} }} '
    for name, values in (
        ("START", "int32_false_true: [ 0, 1 ]"),
        ("END", "int32_false_true: [ 0, 1 ]"),
        ("READY", "int32_false_true: [ 0, 1 ]"),
        ("CORRID", "data_type: TYPE_UINT64"),
    )
)
TENSORS = (
    'input { name: "INPUT" data_type: TYPE_INT32 dims: -1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: -1 } '
)


def sequence_config(strategy="direct { }", max_batch_size=1, idle_us=1_000_000, controls=CONTROLS, more=""):
    """Return a model that batches sequences."""
    batching = f"sequence_batching {{ max_sequence_idle_microseconds: {idle_us} {strategy} {controls} {more} }}"
    return config_of(f"max_batch_size: {max_batch_size} {TENSORS} {batching}")


OLDEST = "oldest { max_candidate_sequences: 4 }"
NO_START = (
    "UnknownSequence: inference request for sequence {} to model 'm' must specify the START flag on the first request "
    "of the sequence"
)
STRATEGIES = {"direct": sequence_config("direct { }", 4), "oldest": sequence_config(OLDEST, 4)}
both = pytest.mark.parametrize("config", STRATEGIES.values(), ids=STRATEGIES)


class InstanceOfPool(FakePool):
    """A pool of one `dyna_sequence`; `batches` are what it was given, as (id, READY) of each row."""

    def __init__(self, clock):
        super().__init__(clock)
        self.instance = DynaSequenceInstance("m_0", 0.0)
        self.batches = []

    def run(self, batch):
        super().run(batch)
        self.batches.append(
            [request.sequence_id if request.inputs["READY"].flat[0] else None for request in batch.requests]
        )

    def finish(self, index=0, error=None):
        batch = self.running.pop(index)
        batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = self.clock.now_ns()
        if error is None:
            self.instance.execute(batch)
        else:
            batch.results = [error] * len(batch.requests)
        self.idle.append(object())
        self.finished(batch)
        self.clock.run()


class Sequences:
    """The scheduler, its clock, its pools, and `answers`: what each request got, by its name."""

    def __init__(self, config, instances=1, states=None, pool=InstanceOfPool):
        self.clock = FakeClock()
        self.pools = [pool(self.clock) for _ in range(instances)]
        self.statistics = ModelStatistics("m", 1, Totals())
        self.scheduler = SequenceScheduler(config, self.pools, self.statistics, self.clock, states)
        self.answers = {}

    def send(self, name, sequence_id, flags=0, value=1, trace=None, **rest):
        """Submit a request that adds a value to its sequence, and turn until nothing waits."""
        value = np.full((rest.pop("rows", 1), rest.pop("width", 1)), value, np.int32)
        request = InferRequest(
            {"INPUT": value}, len(value), self._take, id=name, sequence_id=sequence_id, flags=flags, **rest
        )
        request.trace = trace
        self.scheduler.submit(request)
        self.clock.run()
        return request

    def finish(self, pool=0, **rest):
        """Finish a pool's batch."""
        self.pools[pool].finish(**rest)

    def finish_all(self):
        """Finish batches until none runs."""
        while running := [pool for pool in self.pools if pool.running]:
            running[0].finish()

    def _take(self, request, result):
        assert request.id not in self.answers
        if isinstance(result, ServingError):
            self.answers[request.id] = f"{type(result).__name__}: {result}"
        else:
            self.answers[request.id] = int(result.outputs["OUTPUT"].flat[0])
