import asyncio
import sys
import threading

import numpy as np
import pytest

from deployments.backends.backend import ModelLoadError
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.ensemble import EnsembleScheduler
from deployments.schedulers.fifo import FifoBatcher
from deployments.schedulers.sequence import SequenceScheduler
from protocol.errors import ServingError
from protocol.infer import InferRequest
from protocol.signature import Signature
from repository_loader.package import ModelPackage
from tests.deployments.core.doubler import SPECS, Doubler, DoublerBackend, doubler_backend, package_of
from tests.deployments.fakes import config_of, response_cache


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    with doubler_backend(monkeypatch):
        yield


def sample(head, **inputs):
    """Return a `model_warmup` named s; inputs are the texts of their settings."""
    entries = [f'inputs {{ key: "{name}" value {{ {text} }} }}' for name, text in inputs.items()]
    return f'model_warmup {{ name: "s" {head} {" ".join(entries)} }} '


ZERO_X = "data_type: TYPE_FP32 dims: 2 zero_data: true"

SCHEDULERS = {
    "none chosen": ("", DefaultScheduler),
    "plain dynamic batching": ("dynamic_batching { }", FifoBatcher),
    "dynamic batching with a delay": ("dynamic_batching { max_queue_delay_microseconds: 5 }", DynamicBatcher),
    "sequence batching": ("sequence_batching { }", SequenceScheduler),
    "ensemble": (
        'platform: "ensemble" ensemble_scheduling { step { model_name: "a" model_version: -1 '
        'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }',
        EnsembleScheduler,
    ),
}


@pytest.mark.parametrize(("text", "kind"), SCHEDULERS.values(), ids=SCHEDULERS)
def test_configuration_chooses_the_scheduler(text, kind):
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        steps = {"a": Signature.from_config(config_of("max_batch_size: 4"))}
        model_version = await loader.load(package_of(text), SPECS, clock, Core(clock), steps)
        assert type(model_version.scheduler) is kind
        await model_version.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "max_queue_s", "bounded"),
    [
        ("", 2.0, True),
        ("dynamic_batching { }", 2.0, True),
        ("dynamic_batching { max_queue_delay_microseconds: 5 }", 2.0, True),
        ("dynamic_batching { default_queue_policy { } }", 2.0, False),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 1 }", 2.0, False),
        ("", 0.0, False),
    ],
)
def test_queues_are_bounded_unless_the_model_has_a_policy_for_them(monkeypatch, text, max_queue_s, bounded):
    replies = []

    def submit(model_version):
        request = InferRequest({"X": np.ones((1, 2), np.float32)}, 1, lambda _, result: replies.append(result))
        model_version.submit(request)

    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        model_version = await loader.load(package_of(text), SPECS, clock, Core(clock), max_queue_s=max_queue_s)
        scheduler = model_version.scheduler
        for now_s, count in ((10.0, 300), (11.5, 1), (13.0, 1), (14.5, 300)):
            monkeypatch.setattr(scheduler, "_now_ns", lambda now_s=now_s: int(now_s * 1e9))
            for _ in range(count):
                submit(model_version)
        monkeypatch.undo()
        await model_version.close()
        refused = [str(reply) for reply in replies if isinstance(reply, ServingError)]
        assert refused == ["[request id: <id_unknown>] Exceeds maximum queue size"] * (300 if bounded else 0)
        assert model_version.statistics.counts.rejected_count == len(refused)

    asyncio.run(run())


def test_unknown_backend_is_told_in_tritons_words():
    with pytest.raises(ModelLoadError) as caught:
        loader.prepare(package_of('backend: "mine"'), SPECS)
    assert caught.value.reason == (
        "unable to find backend library for backend 'mine', try specifying runtime on the model configuration. "
        "Eagleray has onnxruntime, python, pytorch and tensorrt"
    )


FAILURES = {
    "framework that is not installed": (
        ModuleNotFoundError("No module named 'torch'", name="torch"),
        "unable to load model 'm', backend 'doubler' needs 'torch', which is not installed; "
        "install it with: pip install 'eagleray[torch]'",
    ),
    "anything else": (OSError("disk on fire"), "unable to load model 'm': OSError: disk on fire"),
    "a reason": (ModelLoadError("as it is"), "as it is"),
}


@pytest.mark.parametrize(
    ("backend", "missing", "extra"),
    [("pytorch", "torch", "torch"), ("tensorrt", "tensorrt", "tensorrt"), ("onnxruntime", "onnxruntime", "")],
)
def test_framework_that_is_not_installed_is_named_with_the_line_that_installs_it(
    backend, missing, extra, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, missing, None)
    package = package_of(path=str(tmp_path))
    package.config.backend = backend
    with pytest.raises(ModelLoadError) as caught:
        loader.prepare(package, SPECS)
    assert caught.value.reason == (
        f"unable to load model 'm', backend '{backend}' needs '{missing}', which is not installed; install it with: "
        f"pip install '{f'eagleray[{extra}]' if extra else missing}'"
    )


@pytest.mark.parametrize(("error", "reason"), FAILURES.values(), ids=FAILURES)
def test_backend_that_fails_gives_a_reason(error, reason):
    DoublerBackend.error = error
    with pytest.raises(ModelLoadError) as caught:
        loader.prepare(package_of(), SPECS)
    assert caught.value.reason == reason


def test_responses_of_models_and_ensembles_are_kept_where_they_want_that():
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        core, cache = Core(clock), response_cache()
        inner = package_of("dynamic_batching { }")
        core.add(await loader.load(inner, SPECS, clock, core, cache=cache))
        step = 'step { model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }'
        text = f'name: "e" platform: "ensemble" response_cache {{ enable: true }} ensemble_scheduling {{ {step} }}'
        ensemble = ModelPackage("e", 1, config_of("max_batch_size: 4 " + text), "", "", "")
        steps = {"m": Signature.from_config(inner.config)}
        core.add(await loader.load(ensemble, [], clock, core, steps, cache))
        x = np.ones((2, 2), np.float32)
        for name in ("e", "e", "m", "m"):
            done = asyncio.get_running_loop().create_future()
            core.infer(name, -1, InferRequest({"X": x}, 2, lambda request, result, done=done: done.set_result(result)))
            np.testing.assert_array_equal((await done).outputs["Y"], 2 * x)
        counts = {name: core.resolve(name).statistics.counts for name in ("e", "m")}
        await core.add(await loader.load(inner, SPECS, clock, core, cache=cache.of("anew"))).close()
        done = asyncio.get_running_loop().create_future()
        core.infer("e", -1, InferRequest({"X": x}, 2, lambda request, result: done.set_result(result)))
        await done
        for name in ("e", "m"):
            await core.remove(name, 1).close()
        assert (counts["e"].cache_hit_count, counts["e"].cache_miss_count, counts["e"].success_count) == (2, 1, 3)
        assert (counts["m"].cache_hit_count, counts["m"].execution_count) == (0, 3)

    asyncio.run(run())


def test_a_model_answers_for_another_process_only_where_its_files_are_the_same(tmp_path):
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        core, cache = Core(clock), response_cache()
        (tmp_path / "weights").write_text("old")
        package = package_of("response_cache { enable: true }", tmp_path)

        async def hits(cache):
            loaded = await loader.load(package, SPECS, clock, core, cache=cache)
            done = asyncio.get_running_loop().create_future()
            loaded.submit(
                InferRequest({"X": np.ones((2, 2), np.float32)}, 2, lambda _, result: done.set_result(result))
            )
            await done
            await loaded.close()
            return loaded.statistics.counts.cache_hit_count

        assert [await hits(cache.of("digest")) for _ in range(2)] == [0, 1]
        assert await hits(cache.of("another digest")) == 0
        (tmp_path / "weights").write_text("changed")
        assert [await hits(cache.of("digest")) for _ in range(2)] == [0, 1]

    asyncio.run(run())


def test_a_model_whose_files_change_while_it_loads_answers_for_no_other(tmp_path):
    (tmp_path / "weights").write_text("old")
    package = package_of("response_cache { enable: true }", tmp_path)
    assert loader.prepare(package, SPECS).files
    DoublerBackend.loading = staticmethod((tmp_path / "weights").unlink)
    assert not loader.prepare(package, SPECS).files


def test_close_answers_everything_and_leaves_no_thread():
    others = set(threading.enumerate())

    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        core = Core(clock)
        core.add(await loader.load(package_of("dynamic_batching { }"), SPECS, clock, core))
        replies = []
        for index in range(100):
            x = np.full((1, 2), index, np.float32)
            core.infer("m", -1, InferRequest({"X": x}, 1, lambda request, result: replies.append(result)))
        await core.remove("m", 1).close()
        assert sorted(reply.outputs["Y"][0, 0] for reply in replies) == [2 * index for index in range(100)]
        assert not [thread for thread in {*threading.enumerate()} - others if thread.name.startswith("m_")]

    asyncio.run(run())
    assert [instance.closed for instance in DoublerBackend.made] == [1, 1]


def test_close_refuses_what_does_not_drain_in_time():
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        batching = "dynamic_batching { preserve_ordering: true }"
        model_version = await loader.load(package_of(batching), SPECS[:1], clock, Core(clock))
        release = threading.Event()
        DoublerBackend.made[0].execute = lambda batch: release.wait(10)
        replies = []
        for _ in range(8):
            x = np.zeros((1, 2), np.float32)
            model_version.submit(InferRequest({"X": x}, 1, lambda request, result: replies.append(result)))
        closing = asyncio.ensure_future(model_version.close(timeout_s=0.05))
        while len(replies) < 4:
            await asyncio.sleep(0)
        release.set()
        await closing
        assert all(isinstance(reply, ServingError) for reply in replies)

    asyncio.run(run())


def test_close_does_not_wait_for_an_instance_that_is_never_freed():
    async def run():
        loop = asyncio.get_running_loop()
        model_version = await loader.load(package_of(), SPECS[:1], LoopClock(loop), Core(LoopClock(loop)))
        release = threading.Event()
        DoublerBackend.made[0].close = lambda: release.wait(20)
        began_s = loop.time()
        await model_version.close(timeout_s=0.05)
        assert loop.time() - began_s < 10
        release.set()

    asyncio.run(run())


class Refusing:
    """A rate limiter that lets no instance run."""

    async def add(self, key, needs):
        raise ModelLoadError("it can never run")

    def remove(self, key):
        raise AssertionError("it was never added")


def test_instances_that_the_rate_limiter_refuses_are_closed_where_they_hold_up_nobody(monkeypatch):
    threads = []
    monkeypatch.setattr(Doubler, "close", lambda instance: threads.append(threading.get_ident()))

    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        package = package_of(
            'instance_group { name: "m" count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
        )
        with pytest.raises(ModelLoadError, match="it can never run"):
            await loader.load(package, SPECS, clock, Core(clock), limiter=Refusing())

    asyncio.run(run())
    assert len(threads) == 2 and threading.get_ident() not in threads


SAMPLES = {
    "zero": ("zero_data: true", np.zeros((1, 2), np.float32)),
    "file": ('input_data_file: "x.bin"', np.array([[1, 2]], np.float32)),
}


@pytest.mark.parametrize(("data", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_every_instance_runs_every_sample(tmp_path, data, expected):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x.bin").write_bytes(np.array([1, 2, 3], "<f4").tobytes())
    sample = f'model_warmup {{ name: "s" batch_size: 3 count: 2 inputs {{ key: "X" value {{ data_type: TYPE_FP32 dims: 2 {data} }} }} }}'
    prepared = loader.prepare(package_of(sample, tmp_path), SPECS)
    for instance in prepared.instances:
        assert [len(batch) for batch in instance.batches] == [3, 3]
        np.testing.assert_array_equal(instance.batches[0][0]["X"], expected)
    assert prepared.statistics.counts.execution_count == 4 and prepared.statistics.counts.inference_count == 12


TYPES = ["BOOL", "UINT8", "INT64", "FP16", "FP64", "BF16", "STRING"]


@pytest.mark.parametrize("name", TYPES)
def test_random_data_of_every_type(name):
    text = sample("batch_size: 1", X=ZERO_X, R=f"data_type: TYPE_{name} dims: 3 random_data: true")
    loader.prepare(package_of(text), SPECS)
    array = DoublerBackend.made[0].batches[0][0]["R"]
    assert array.shape == (1, 3)
    if name == "STRING":
        assert array.tolist() == [[b"", b"", b""]]


def test_strings_from_a_file(tmp_path):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "s").write_bytes(b"\x01\0\0\0a\0\0\0\0")
    text = sample("batch_size: 1", X=ZERO_X, S='data_type: TYPE_STRING dims: 2 input_data_file: "s"')
    loader.prepare(package_of(text, tmp_path), SPECS)
    assert DoublerBackend.made[0].batches[0][0]["S"].tolist() == [[b"a", b""]]


def test_data_of_a_sample_may_be_a_link_as_a_model_file_may(tmp_path):
    (tmp_path / "cache").write_bytes(np.array([7, 8], np.float32).tobytes())
    (tmp_path / "m/warmup").mkdir(parents=True)
    (tmp_path / "m/warmup/x").symlink_to(tmp_path / "cache")
    text = sample("batch_size: 1", X='data_type: TYPE_FP32 dims: 2 input_data_file: "x"')
    loader.prepare(package_of(text, tmp_path / "m"), SPECS)
    assert DoublerBackend.made[0].batches[0][0]["X"].tolist() == [[7, 8]]


def test_sample_without_a_batch_size_is_skipped():
    loader.prepare(package_of(sample("", X=ZERO_X)), SPECS)
    assert DoublerBackend.made[0].batches == []


BAD_SAMPLES = {
    "variable size": (
        "dims: -1 zero_data: true",
        "warmup setting expects all variable-size dimensions are specified for input 'X'",
    ),
    "much data": (
        "dims: [ 1000000, 1000000 ] zero_data: true",
        "warmup data of input 'X' has more than 268435456 elements",
    ),
    "no data": ("dims: 2", "warmup setting expects input 'X' to have input_data_type set"),
    "short file": (
        'dims: 9 input_data_file: "x"',
        "warmup setting expects 36 bytes for input 'X', but the data provided is 3",
    ),
    "file outside": (
        'dims: 2 input_data_file: "../../etc/passwd"',
        "warmup data file '../../etc/passwd' of model 'm' lies outside its warmup folder",
    ),
}


@pytest.mark.parametrize(("text", "reason"), BAD_SAMPLES.values(), ids=BAD_SAMPLES)
def test_sample_that_cannot_be_made_fails_the_load(tmp_path, text, reason):
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x").write_bytes(b"abc")
    with pytest.raises(ModelLoadError) as caught:
        loader.prepare(package_of(sample("batch_size: 1", X=f"data_type: TYPE_FP32 {text}"), tmp_path), SPECS)
    assert caught.value.reason == reason
    assert [instance.closed for instance in DoublerBackend.made] == [1, 1]


UNFIT = [
    (1, "INT32", 2, "data-type is 'INT32'"),
    (1, "FP32", 3, "unexpected shape"),
    (5, "FP32", 2, "max allowed is 4"),
]


@pytest.mark.parametrize(("rows", "datatype", "size", "told"), UNFIT)
def test_sample_that_the_model_would_not_take_fails_the_load(rows, datatype, size, told):
    setting = f"data_type: TYPE_{datatype} dims: {size} zero_data: true"
    with pytest.raises(ModelLoadError, match=told):
        loader.prepare(package_of(sample(f"batch_size: {rows}", X=setting)), SPECS)


@pytest.mark.parametrize("much", ["batch_size: 2147483647", "batch_size: 1 count: 2147483647"])
def test_sample_of_too_many_rows_or_runs_fails_the_load(much):
    with pytest.raises(ModelLoadError, match="warmup sample 's' has a batch_size or count of more than 65536"):
        loader.prepare(package_of(sample(much, X=ZERO_X)), SPECS)


def test_sample_that_fails_fails_the_load():
    failing = 'parameters { key: "fail" value { string_value: "yes" } }'
    with pytest.raises(ModelLoadError, match="failed to run warmup sample 's': too cold"):
        loader.prepare(package_of(sample("batch_size: 1", X=ZERO_X) + failing), SPECS)
