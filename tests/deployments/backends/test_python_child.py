"""What happens at the edges of the life of a model's process, and when there is no shared memory for it."""

import asyncio
import gc
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch, ModelLoadError
from deployments.backends.python.backend import PythonBackend, initialize_args
from deployments.backends.python.process import area, child
from deployments.backends.python.process.child import Child, LoadOrder
from deployments.backends.python.process.exchange import signature_fields
from deployments.backends.python.process.process_instance import ProcessInstance
from deployments.backends.python.process.starter import STARTER, Starter
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.schedulers import outage
from protocol.infer import InferRequest, InferResponse
from protocol.signature import Signature
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.replica.hosted_models import COUNTDOWN, DECOUPLED, Models, on_a_loop
from tests.no_more_files import no_more_files

SPEC = InstanceSpec("m_0", "CPU", 0, own_process=True)
CONFIG = """
name: "m" backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: -1 }
output { name: "Y" data_type: TYPE_INT32 dims: -1 }
"""
ECHO = """
import os, threading, time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}
    def execute(self, requests):
        {execute}
"""


def written(folder: Path, initialize: str = "pass", execute: str = "os._exit(3)", more: str = "") -> ModelPackage:
    (folder / "model.py").write_text(ECHO.format(initialize=initialize, execute=execute))
    config = text_format.Parse(CONFIG + more, ModelConfig())
    return ModelPackage("m", 1, config, str(folder), str(folder), str(folder / "model.py"))


def order_of(package: ModelPackage) -> LoadOrder:
    fields = signature_fields(Signature.for_backend(package.config))
    args = initialize_args(package, SPEC)
    return LoadOrder("m_0", package.file_path, package.version_path, package.model_path, fields, args, False)


def test_a_process_that_dies_as_soon_as_it_is_ready_is_not_loaded(tmp_path: Path) -> None:
    package = written(tmp_path, "threading.Timer(0.3, os._exit, (3,)).start()")
    child = Child(order_of(package), None, lambda batch: None, lambda: None)
    wait = child._wait

    def wait_late(over: object) -> None:
        child.process.wait()
        wait(over)  # type: ignore[arg-type]

    child._wait = wait_late  # type: ignore[method-assign, assignment]
    with pytest.raises(ModelLoadError, match="ended with exit code 3"):
        child.load()


def test_a_process_that_is_dead_before_it_hears_what_to_load_is_not_loaded(tmp_path: Path) -> None:
    child = Child(order_of(written(tmp_path)), None, lambda batch: None, lambda: None)
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()
    with pytest.raises(ModelLoadError, match="was ended by SIGKILL"):
        child.load()


def test_a_process_of_other_code_than_its_replica_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_DIGEST", "of what was installed before")
    other = Child(order_of(written(tmp_path)), None, lambda batch: None, lambda: None)
    with pytest.raises(ModelLoadError, match="has other code than its replica: Eagleray was installed anew meanwhile"):
        other.load()


def never_back(folder: Path) -> ModelPackage:
    """Write a model whose process dies with its first request, and cannot be loaded again."""
    died = folder / "died"
    initialize = f"os._exit(4) if os.path.exists({str(died)!r}) else None"
    return written(folder, initialize, f"open({str(died)!r}, 'w').close(); os._exit(3)")


def test_an_instance_that_waits_to_be_started_again_is_closed_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = never_back(tmp_path)

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        model = await loader.load(package, [SPEC], clock, Core(clock))
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        request = InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda _, result: answer.set_result(result))
        model.submit(request)
        await asyncio.wait_for(answer, 20)
        while caplog.text.count("cannot be loaded again") < 3:  # the next is tried after 2 s
            await asyncio.sleep(0.01)
        began_s = time.monotonic()
        await model.close(20)
        assert time.monotonic() - began_s < 1.5

    asyncio.run(run())


def test_who_waits_for_an_instance_that_does_not_come_back_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "MAX_OUTAGE_S", 0.2)
    package = never_back(tmp_path)

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        model = await loader.load(package, [SPEC], clock, Core(clock))
        answers: asyncio.Queue[object] = asyncio.Queue()
        for _ in range(2):
            model.submit(InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda _, result: answers.put_nowait(result)))
        assert "exit code 3" in str(await asyncio.wait_for(answers.get(), 20))
        assert str(await asyncio.wait_for(answers.get(), 20)) == outage.LASTS
        await model.close(20)

    asyncio.run(run())


@pytest.mark.parametrize("what", ["thread", "process"])
def test_an_instance_is_started_again_though_the_system_had_no_more_threads_for_that(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = written(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        model = await loader.load(package, [SPEC], clock, Core(clock))
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        request = InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda _, result: answer.set_result(result))
        monkeypatch.setattr(*((threading.Thread, "start") if what == "thread" else (STARTER, "start")), refuse)
        model.submit(request)
        await asyncio.wait_for(answer, 20)
        async with asyncio.timeout(20):
            while model.pool is None or not model.pool.alive:
                await asyncio.sleep(0.01)
        assert "cannot be loaded again" in caplog.text
        await model.close(20)

    asyncio.run(run())


def test_no_instance_is_left_behind_where_there_was_no_thread_to_load_the_next_one_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, count = ThreadPoolExecutor.submit, 0

    def submit_once(self: ThreadPoolExecutor, *given: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise RuntimeError("can't start new thread")
        return submit(self, *given)

    package = written(tmp_path, f"Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))")
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_once)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        PythonBackend().load(package, [SPEC, replace(SPEC, name="m_1")])
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_processes_are_started_though_the_system_had_no_more_threads_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    starter = Starter()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        starter.start(["true"])
    monkeypatch.undo()
    assert starter.start(["true"]).wait(20) == 0


def test_a_request_of_a_decoupled_model_that_finds_no_shared_memory_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = written(tmp_path, more="model_transaction_policy { decoupled: true }")
    monkeypatch.setattr(area, "MAX_BYTES", 0)

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        model = await loader.load(package, [SPEC], clock, Core(clock))
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        request = InferRequest({"X": np.zeros(10_000, np.int32)}, 1, lambda _, result: answer.set_result(result))
        model.submit(request)
        assert "no room for" in str(await asyncio.wait_for(answer, 20))
        assert model.statistics.counts.backend_count == 1
        assert model.streams is not None and not model.streams.open_count
        await model.close(20)

    asyncio.run(run())


@on_a_loop
async def test_a_call_whose_responses_find_no_shared_memory_ends_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = Models(tmp_path, True).add("countdown", COUNTDOWN.replace("[number]", "[number] * 9_000"), DECOUPLED)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                got = list(request_to("countdown", x_of(requests[0])).exec(decoupled=True))
                [request_to("countdown", x_of(requests[0])).exec() for _ in range(9)]
                return [answer(np.array([len(got), "no room" in str(got[-1].error()), os.getpid()]))]
        """.replace("class", "import os\n\n        class", 1),
    )
    async with asyncio.timeout(20), models.hosted() as call:
        monkeypatch.setattr(area, "MAX_BYTES", 0)
        heard = [await call("caller", 3) for _ in range(5)]
        assert heard == [[1, True, heard[0][2]]] * 5


def test_a_process_that_cannot_be_started_for_lack_of_descriptors_leaves_none_behind(tmp_path: Path) -> None:
    order = order_of(written(tmp_path))
    Child(order, None, lambda batch: None, lambda: None).release()  # the thread that starts all processes runs now
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests have left may hold some
    before = len(os.listdir("/proc/self/fd"))
    refused = 0
    for more in range(1, 30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + more, limits[1]))
        try:
            Child(order, None, lambda batch: None, lambda: None).release()
        except OSError:
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == before
    assert 5 < refused < 29


LARGE_OUTPUT = """[
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(10_000, np.int32))]) for _ in requests
        ]"""


def test_results_that_cannot_be_read_for_lack_of_descriptors_fail_their_requests_alone(tmp_path: Path) -> None:
    package = written(tmp_path, execute=f"import numpy as np; return {LARGE_OUTPUT}")

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        model = await loader.load(package, [SPEC], clock, Core(clock))

        async def ask() -> object:
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            model.submit(InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda _, result: answer.set_result(result)))
            return await asyncio.wait_for(answer, 20)

        with no_more_files():
            assert "cannot be read: Too many open files" in str(await ask())
        answered = await ask()
        assert isinstance(answered, InferResponse) and len(answered.outputs["Y"]) == 10_000
        await model.close(20)

    asyncio.run(run())


def test_an_instance_that_says_something_all_the_time_is_closed_in_time(tmp_path: Path) -> None:
    says = "[(time.sleep(0.05), pb_utils.Logger.log_info('more')) for _ in range(200)]"
    instance = ProcessInstance(order_of(written(tmp_path, f"self.finalize = lambda: {says}")), None)
    began_s = time.monotonic()
    instance.close(0.5)
    assert time.monotonic() - began_s < 5


@on_a_loop
async def test_a_socket_for_forks_that_the_model_has_closed_is_watched_no_longer(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    forks = "int(open('/proc/self/cmdline').read().split(chr(0))[-6])"
    package = written(tmp_path, execute=f"os.close({forks}); return [None]")
    child = Child(order_of(package), None, lambda batch: None, lambda: None)
    try:
        child.load()
        child.attach(LoopClock(loop))
        descriptor = child._forks.fileno()
        child.begin(Batch([InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda *_: None)], 1))
        async with asyncio.timeout(5):
            while descriptor in child._readers():
                await asyncio.sleep(0.01)
        assert not loop.remove_reader(descriptor)
    finally:
        child.kill("is needed no more")
        child.release()
