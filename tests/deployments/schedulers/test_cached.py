"""The response cache: what is a hit and what is not, its bound, and what is counted."""

import hashlib
import secrets
import time
from pathlib import Path

import numpy as np
import pytest

from deployments.core.counts import Totals
from deployments.core.response_cache import request_digest
from deployments.core.statistics import ModelStatistics
from deployments.replica.region_mapping import RegionMapping
from deployments.schedulers.cached import MAX_INPUT_BYTES, MAX_OUTPUT_BYTES, MAX_TEXTS, CachedScheduler, _is_large
from deployments.schedulers.default import DefaultScheduler
from protocol.errors import Internal, Unavailable
from protocol.infer import InferRequest, InferResponse
from protocol.trace import TIMESTAMPS, new_trace
from tests.deployments.fakes import MS, Answers, FakeClock, FakeInstance, FakePool, response_cache

X = np.array([[1, 2]], np.float32)


class DoublingPool(FakePool):
    """Runs every batch at once."""

    def __init__(self, clock):
        super().__init__(clock)
        self.instance = FakeInstance(clock)
        self.outputs = None

    def run(self, batch):
        batch.start_ns = self.clock.now_ns()
        if self.instance.error is None:
            self.instance.execute(batch)
            if self.outputs is not None:
                batch.results = [InferResponse(dict(self.outputs)) for _ in batch.requests]
        else:
            self.instance.batches.append([])
            batch.infer_start_ns = batch.infer_end_ns = batch.start_ns
            batch.results = [self.instance.error] * len(batch.requests)
        batch.end_ns = self.clock.now_ns()
        self.finished(batch)


class Served:
    """A model that doubles, behind a cache."""

    def __init__(self, cache=None):
        cache = cache or response_cache(1 << 24)
        self.clock = FakeClock()
        self.pool = pool = DoublingPool(self.clock)
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


def test_to_name_no_output_is_to_ask_for_all():
    """As an ensemble does, and then a client."""
    served = Served(response_cache(1 << 24).of("m", ("Y", "Z")))
    served.ask("a", outputs=("Z", "Y"))
    served.ask("b")
    assert served.executions == 1
    served.ask("c", outputs=("Y",))
    assert served.executions == 2


def test_the_id_that_generate_hands_on_as_a_parameter_is_no_difference():
    served = Served()
    for id in ("a", "b"):
        served.ask(id, parameters={"id": id})
    assert served.executions == 1
    served.ask("c", parameters={"id": "d"})
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
        assert _is_large(texts(*values).inputs, MAX_INPUT_BYTES)
    assert not _is_large(texts(*[b"x"] * 100).inputs, MAX_INPUT_BYTES)


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (np.zeros((1, MAX_OUTPUT_BYTES), np.uint8), 1),
        (np.zeros((1, MAX_OUTPUT_BYTES + 1), np.uint8), 2),
        (np.full((1, MAX_TEXTS), b"text", object), 1),
        (np.full((1, MAX_TEXTS + 1), b"text", object), 2),
    ],
    ids=["large", "too large", "many texts", "too many texts"],
)
def test_an_answer_that_would_take_long_to_copy_is_not_kept(answer, runs):
    served = Served(response_cache(1 << 26))
    served.pool.outputs = {"Y": answer}
    for name in "ab":
        assert served.ask(name).outputs["Y"].size == answer.size
    assert served.executions == runs
    assert served.statistics.counts.cache_miss_count == runs


def test_a_hit_is_a_response_of_its_own():
    served = Served()
    first = served.ask("a")
    first.outputs["Y"][:] = 99
    second = served.ask("b")
    second.outputs.clear()
    assert served.ask("c").outputs["Y"].tolist() == [[2, 4]]


def key_of(number):
    return hashlib.sha256(b"%d" % number).digest()


def test_errors_are_not_kept():
    served = Served()
    served.instance.error = Internal("no")
    assert isinstance(served.ask("a"), Internal)
    served.instance.error = None
    assert isinstance(served.ask("b"), InferResponse)
    assert served.executions == 2


def test_what_is_kept_is_bounded_and_what_is_in_use_stays():
    cache = response_cache(10 * (1024 + 8000))
    for number in range(100):
        cache.keep(key_of(number), InferResponse({"Y": np.full(1000, number, np.float64)}))
        first = cache.find(key_of(0))
        assert first is not None and not first.outputs["Y"].any()
    kept = [number for number in range(100) if cache.find(key_of(number)) is not None]
    assert 5 <= len(kept) <= 11 and kept[1:] == [*range(101 - len(kept), 100)]
    cache.keep(key_of(100), InferResponse({"Y": np.zeros(20_000)}))
    assert cache.find(key_of(100)) is None


def test_a_response_comes_back_as_it_was():
    cache = response_cache()
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in ("?", "i1", "u2", "f2", "<f4", "f8", "i8")]
    arrays += [np.zeros((0, 3), np.float32), np.array(5, np.int16), np.arange(9).reshape(3, 3)[:, ::2]]
    text = np.empty((3, 1), object)
    text[:, 0] = [b"", b"a\0b", "ü".encode()]
    response = InferResponse(dict(zip("abcdefghijk", [*arrays, text], strict=True)), {"n": 1, "x": 0.5, "t": "ü"})
    cache.keep(key_of(0), response)
    found = cache.find(key_of(0))
    assert list(found.outputs) == list(response.outputs) and found.parameters == response.parameters
    for name, array in response.outputs.items():
        other = found.outputs[name]
        assert (other.dtype, other.shape, other.tolist()) == (array.dtype, array.shape, array.tolist())


def test_models_of_two_scopes_do_not_answer_for_each_other():
    cache = response_cache()
    served = [Served(cache.of(scope)) for scope in ("old", "new", "old")]
    for one in served:
        one.ask("a")
    assert [one.executions for one in served] == [1, 1, 0]


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


class SlowCache:
    """A response cache that takes 3 ms to find and 2 ms to keep."""

    def __init__(self):
        cache = response_cache()
        self.key, self._cache = cache.key, cache
        self.clock = None

    def find(self, key):
        self.clock.advance(3)
        return self._cache.find(key)

    def keep(self, key, response):
        self.clock.advance(2)
        self._cache.keep(key, response)


def test_hits_and_misses_are_counted_with_the_time_that_the_cache_took():
    served = Served(SlowCache())
    served.cache.clock = served.clock
    counts = served.statistics.counts
    served.ask("a")
    assert (counts.cache_miss_ns, counts.cache_hit_ns, counts.success_ns) == (5 * MS, 0, 3 * MS)
    served.ask("b")
    assert (counts.cache_miss_ns, counts.cache_hit_ns, counts.success_ns) == (5 * MS, 3 * MS, 6 * MS)


def test_a_model_that_goes_answers_nothing_new_from_the_cache_either():
    served = Served()
    served.ask("a")
    served.scheduler.drain(lambda: None)
    assert isinstance(served.ask("b"), Unavailable)


def test_a_hit_costs_less_than_a_quick_model():
    """A model of 100 µs, which is quick, against a look-up of a request of 4 KiB."""
    cache = response_cache()
    request = InferRequest({"X": np.zeros(1024, np.float32)}, 1, None)
    cache.keep(cache.key(request), InferResponse({"Y": np.zeros(1024, np.float32)}))
    durations_ns = []
    for _ in range(200):
        began_ns = time.perf_counter_ns()
        assert cache.find(cache.key(request)) is not None
        durations_ns.append(time.perf_counter_ns() - began_ns)
    assert min(durations_ns) < 100_000


def test_a_traced_request_that_is_a_hit_says_so():
    served = Served()
    served.ask("first")
    served.clock.run()
    request = served.answers.request("second", inputs={"X": X})
    request.trace = trace = new_trace(TIMESTAMPS)
    served.scheduler.submit(request)
    served.clock.run()
    assert served.answers.order == ["first", "second"]
    assert trace.attributes == {"cache_hit": True} and request.queued_ns == served.clock.now_ns()


def test_what_a_client_changes_in_its_shared_memory_is_no_answer_to_others():
    served = Served()
    path = Path("/dev/shm") / f"eagleray-test-{secrets.token_hex(8)}"
    path.write_bytes(2 * X.tobytes())
    try:
        region = memoryview(RegionMapping.of(str(path), 0, 2 * X.nbytes))
    finally:
        path.unlink()
    inputs = {"X": np.frombuffer(region, np.float32, X.size).reshape(X.shape)}
    request = InferRequest(inputs, 1, served.answers, id="a", places={"Y": region[X.nbytes :]})
    served.scheduler.submit(request)
    region[:] = bytes(len(region))
    served.clock.run()
    assert request.places is None
    for answer in (served.answers.results["a"], served.ask("b")):
        np.testing.assert_array_equal(answer.outputs["Y"], 2 * X)
    assert served.executions == 1
