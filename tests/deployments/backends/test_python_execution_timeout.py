"""What ends in the same moment: a batch, the time that it may take, and the process that runs it."""

import asyncio
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import pytest

from deployments.backends.backend import Batch, ModelLoadError
from deployments.backends.python.process.process_instance import ProcessInstance
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse
from tests.deployments.backends.test_python_child import SPEC, order_of, written

ANSWER = "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([os.getpid()], np.int32))])]"


class Timer:
    """A call that a test makes when it likes."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self.call()


class Turns:
    """A clock of which the test takes the turns: what is readable is read, and timers fire, when it says so."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.timers: list[Timer] = []
        self.watch = self.readers.__setitem__
        self.unwatch = self.readers.pop
        self.now_ns = monotonic_ns

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(call))
        return self.timers[-1]

    def call_soon(self, call: Callable[[], None]) -> None:
        raise AssertionError("nothing is put off here")

    call_soon_threadsafe = call_soon


class Started:
    """An instance whose batches may take a while, and what came of them."""

    def __init__(self, folder: Path, execute: str) -> None:
        package = written(folder, "global np; import numpy as np", execute)
        self.clock = Turns()
        self.instance = ProcessInstance(order_of(package), None, execution_timeout_s=5.0)
        self.done: list[tuple[Batch, bool]] = []
        clock: Any = self.clock
        self.instance.attach(clock, lambda batch: self.done.append((batch, self.instance.alive)), lambda: None)
        self.pid = self.instance._child.process.pid

    def begin(self) -> Batch:
        request = InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda *_: None)
        batch = Batch([request], 1)
        self.instance.begin(batch)
        return batch

    def wait_for(self, descriptor: int) -> Callable[[], None]:
        """Return what reads a descriptor, which has something to read."""
        assert select.select([descriptor], [], [], 20)[0]
        return lambda: self.clock.readers.get(descriptor, lambda: None)()

    def results(self) -> Callable[[], None]:
        return self.wait_for(self.instance._child._work.connection.fileno())

    def death(self) -> Callable[[], None]:
        return self.wait_for(self.instance._child._exit)


@contextmanager
def started(folder: Path, execute: str = ANSWER) -> Iterator[Started]:
    instance = Started(folder, execute)
    try:
        yield instance
    finally:
        instance.instance._child.kill("is needed no more")
        instance.instance._child.release()


def test_a_batch_that_ends_as_its_time_is_up_is_answered_and_costs_no_process(tmp_path: Path) -> None:
    with started(tmp_path) as it:
        for _ in range(2):
            batch = it.begin()
            read = it.results()
            it.clock.timers.pop().fire()
            read()
            assert it.done.pop() == (batch, True)
            (result,) = batch.results
            assert isinstance(result, InferResponse) and result.outputs["Y"].tolist() == [it.pid]
        assert it.done == []


@pytest.mark.parametrize("order", list(permutations(["results", "time", "death"])), ids=" ".join)
def test_a_batch_is_answered_once_and_no_other_goes_to_a_process_that_is_ending(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    with started(tmp_path) as it:
        batch = it.begin()
        read = it.results()
        os.kill(it.pid, signal.SIGKILL)
        turns = {"results": read, "time": it.clock.timers.pop().fire, "death": it.death()}
        for each in order:
            turns[each]()
        ((answered, free),) = it.done
        assert answered is batch
        assert isinstance(batch.results[0], InferResponse)
        assert free == (order[0] != "death"), "nobody could know of its end before"
        assert not it.instance.alive


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many as a process with a thousand clients has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken = [os.dup(0) for _ in range(1100)]
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_time_is_up_in_a_process_with_many_descriptors_too(tmp_path: Path) -> None:
    with started(tmp_path, "time.sleep(60)") as it:
        assert it.instance._child._exit > 1023
        batch = it.begin()
        it.clock.timers.pop().fire()
        assert it.instance._child.wait(20)
        it.clock.readers[it.instance._child._exit]()
        assert it.done == [(batch, False)]


def test_a_batch_that_goes_on_is_ended_and_answered_once(tmp_path: Path) -> None:
    with started(tmp_path, "time.sleep(60)") as it:
        batch = it.begin()
        it.clock.timers.pop().fire()
        assert not it.instance.alive
        assert it.done == []
        it.death()()
        assert it.done == [(batch, False)]
        (result,) = batch.results
        assert isinstance(result, ServingError) and "ran one batch for more than 5000 ms" in result.message


WARM_UP = """
parameters { key: "eagleray.execution_timeout_ms" value { string_value: "500" } }
model_warmup { name: "zeros" batch_size: 1 inputs { key: "X" value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }
"""


def test_a_model_whose_warm_up_hangs_is_not_loaded(tmp_path: Path) -> None:
    package = written(tmp_path, execute="time.sleep(60)", more=WARM_UP)

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        async with asyncio.timeout(20):
            await loader.load(package, [SPEC], clock, Core(clock))

    with pytest.raises(ModelLoadError, match="ran one batch for more than 500 ms"):
        asyncio.run(run())
