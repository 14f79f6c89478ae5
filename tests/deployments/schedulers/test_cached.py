"""The response cache: what is a hit and what is not, its bound, and what is counted."""

import time

import numpy as np
import pytest

from deployments.core.counts import Totals
from deployments.core.response_cache import ResponseCache, request_digest
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.cached import MAX_INPUT_BYTES, MAX_TEXTS, CachedScheduler, _is_large
from deployments.schedulers.default import DefaultScheduler
from protocol.errors import Internal
from protocol.infer import InferRequest, InferResponse
from tests.deployments.fakes import Answers, FakeClock, FakeInstance, FakePool

X = np.array([[1, 2]], np.float32)


class DoublingPool(FakePool):
    """Runs every batch at once."""

    def __init__(self, clock):
        super().__init__(clock)
        self.instance = FakeInstance(clock)

    def run(self, batch):
        batch.start_ns = self.clock.now_ns()
        if self.instance.error is None:
            self.instance.execute(batch)
        else:
            self.instance.batches.append([])
            batch.infer_start_ns = batch.infer_end_ns = batch.start_ns
            batch.results = [self.instance.error] * len(batch.requests)
        batch.end_ns = self.clock.now_ns()
        self.finished(batch)


class Served:
    """A model that doubles, behind a cache."""

    def __init__(self, cache=None):
        cache = cache or ResponseCache(1 << 24)
        self.clock = FakeClock()
        pool = DoublingPool(self.clock)
        self.instance = pool.instance
        self.statistics = ModelStatistics("m", 1, Totals())
        self.cache = cache
        inner = DefaultScheduler(pool, self.statistics, self.clock)
        self.scheduler = CachedScheduler(inner, self.cache, self.statistics, self.clock)
        self.answers = Answers()

    def ask(self, id, *, outputs=None, parameters=None, sequence_id=0, **inputs):
        inputs = inputs or {"X": X}
        self.scheduler.submit(
            InferRequest(
                inputs, 1, self.answers, id=id, outputs=outputs, parameters=parameters, sequence_id=sequence_id
            )
        )
        self.clock.run()
        return self.answers.results[id]

    @property
    def executions(self):
        return len(self.instance.batches)


def test_the_same_request_runs_once():
    served = Served()
    first, second = served.ask("a"), served.ask("b")
    assert served.executions == 1
    assert first.outputs["Y"].tolist() == second.outputs["Y"].tolist() == [[2, 4]]


DIFFERENT = {
    "content": {"X": np.array([[1, 3]], np.float32)},
    "shape": {"X": X.reshape(2, 1)},
    "datatype": {"X": X.view(np.int32)},
    "an input more": {"X": X, "Z": X},
    "parameters": {"parameters": {"a": 1}},
    "outputs": {"outputs": ("Y",)},
    "a sequence": {"sequence_id": 5},
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT)
def test_a_request_that_differs_runs(other):
    served = Served()
    served.ask("a")
    served.ask("b", **other)
    assert served.executions == 2


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64"])
def test_every_datatype_and_shape_has_a_digest(dtype):
    arrays = [np.zeros(shape, dtype) for shape in ((), (0,), (0, 3), (3, 0), (2, 2))] + [
        np.zeros((4, 4), dtype)[:, ::2]
    ]
    assert len({request_digest(InferRequest({"X": array}, 1, None)) for array in arrays}) == 6


def texts(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return InferRequest({"T": array}, 1, None)


def test_texts_are_told_apart_by_where_they_end():
    digests = {
        request_digest(texts(*values)) for values in ((b"ab", b"c"), (b"a", b"bc"), (b"abc", b""), (b"", b"abc"))
    }
    assert len(digests) == 4
    assert request_digest(texts(b"a", b"b")) == request_digest(texts(b"a", b"b"))


def test_a_request_that_would_take_long_to_compare_runs():
    served = Served()
    for size in (MAX_INPUT_BYTES // 4, MAX_INPUT_BYTES // 4 + 1):
        for name in "ab":
            served.ask(f"{name}{size}", X=np.zeros((1, size), np.float32))
    assert served.executions == 3
    for values in ([b"x" * (MAX_INPUT_BYTES + 1)], [b""] * (MAX_TEXTS + 1)):
        assert _is_large(texts(*values))
    assert not _is_large(texts(*[b"x"] * 100))


def test_a_hit_is_a_response_of_its_own():
    served = Served()
    first = served.ask("a")
    first.outputs["Y"][:] = 99
    second = served.ask("b")
    second.outputs.clear()
    assert served.ask("c").outputs["Y"].tolist() == [[2, 4]]


def test_errors_are_not_kept():
    served = Served()
    served.instance.error = Internal("no")
    assert isinstance(served.ask("a"), Internal)
    served.instance.error = None
    assert isinstance(served.ask("b"), InferResponse)
    assert served.executions == 2


def test_what_is_kept_is_bounded_and_the_least_recently_used_goes_first():
    cache = ResponseCache(10 * (1024 + 8000))
    responses = [InferResponse({"Y": np.full(1000, number, np.float64)}) for number in range(30)]
    for number, response in enumerate(responses):
        cache.keep((1, bytes([number])), response)
        assert cache.used_bytes <= 10 * (1024 + 8000)
        assert cache.find((1, b"\0")) is not None  # the first stays in use
    kept = [number for number in range(30) if cache.find((1, bytes([number]))) is not None]
    assert kept == [0, *range(21, 30)]
    cache.keep((1, b"large"), InferResponse({"Y": np.zeros(20_000)}))
    assert cache.find((1, b"large")) is None and cache.find((1, b"\0")) is not None


def test_texts_count_by_their_length():
    cache = ResponseCache(4000)
    text = np.empty(2, object)
    text[:] = [b"x" * 1000, b"y" * 1000]
    cache.keep((1, b"a"), InferResponse({"T": text}))
    assert 3000 < cache.used_bytes < 4000


def test_a_model_that_is_loaded_anew_answers_anew():
    cache = ResponseCache(1 << 20)
    old, new = Served(cache), Served(cache)
    old.ask("a")
    new.ask("a")
    assert (old.executions, new.executions) == (1, 1)
    old.scheduler.drain(lambda: None)
    before = cache.used_bytes
    new.scheduler.drain(lambda: None)
    assert cache.used_bytes == 0 < before


def test_hits_and_misses_are_counted_as_triton_counts_them():
    served = Served()
    counts = served.statistics.counts
    before = counts.values()
    for name in "abcd":
        served.ask(name)
    names = [field for field, _ in counts._fields_]
    grown = {name: now - then for name, now, then in zip(names, counts.values(), before, strict=True)}
    assert (grown["success_count"], grown["cache_hit_count"], grown["cache_miss_count"]) == (4, 3, 1)
    assert (grown["compute_count"], grown["inference_count"], grown["execution_count"]) == (1, 1, 1)


def test_a_hit_costs_less_than_a_quick_model():
    """A model of 100 µs, which is quick, against a look-up of a request of 4 KiB."""
    cache = ResponseCache(1 << 20)
    request = InferRequest({"X": np.zeros(1024, np.float32)}, 1, None)
    cache.keep((1, request_digest(request)), InferResponse({"Y": np.zeros(1024, np.float32)}))
    durations_ns = []
    for _ in range(200):
        began_ns = time.perf_counter_ns()
        assert cache.find((1, request_digest(request))) is not None
        durations_ns.append(time.perf_counter_ns() - began_ns)
    assert min(durations_ns) < 100_000
