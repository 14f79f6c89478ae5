"""Python models that are not decoupled, and answer through their senders when `execute` has long returned."""

import asyncio
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.core.statistics_document import documents
from protocol.errors import Cancelled, Internal
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from protocol.trace import CONTEXT, TIMESTAMPS, new_trace
from tests.deployments.replica.hosted_models import CALLER, CONFIG, Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen

STAGES = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
HOLD, ANSWER, DROP, DIE = 0, 1, 2, 3
HOLDS = """
import os

class TritonPythonModel:
    def initialize(self, args):
        self.held = []

    def execute(self, requests):
        for request in requests:
            command, sender = x_of(request).as_numpy().flat[0], request.get_response_sender()
            if command == 0:
                self.held.append(sender)
                continue
            if command == 1:
                for number, held in enumerate(self.held):
                    held.send(answer(np.full_like(x_of(request).as_numpy(), number)), flags=1)
            if command == 3:
                os._exit(3)
            self.held.clear()
            held = None
            sender.send(answer(np.full_like(x_of(request).as_numpy(), len(requests))), flags=1)
"""
WAITS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            arguments = x_of(request).as_numpy().copy(), request.get_response_sender()
            threading.Thread(target=self.answer, args=arguments).start()

    def answer(self, x, sender):
        if x[0]:
            open(%r, "rb", buffering=0).read(1)
        sender.send(answer(x), flags=1)
"""
"""Answers 0 at once, and others when the test has written to the pipe."""
ENDS_WITH_ITS_CLIENT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

    def answer(self, sender):
        while not sender.is_cancelled():
            threading.Event().wait(0.01)
        error = pb_utils.TritonError("", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), flags=1)
"""
LATER = """
class TritonPythonModel:
    def execute(self, requests):
        left = threading.Event()
        for request in requests:
            threading.Thread(target=self.answer, args=(request, left)).start()
        threading.Timer(0.05, left.set).start()

    def answer(self, request, left):
        left.wait()
        request.get_response_sender().send(answer(x_of(request).as_numpy()), flags=1)
"""
BATCHES = CONFIG.replace("max_batch_size: 0", "max_batch_size: 4")


@pytest.fixture
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileIO]:
    path = str(tmp_path_factory.mktemp("pipe") / "pipe")
    os.mkfifo(path)
    with FileIO(path, "r+") as pipe:
        yield pipe


async def at_rest(call: Any, count: int) -> None:
    """Wait until the instance is idle, and so many requests are unanswered."""
    version = call.host.core.resolve("m")
    async with asyncio.timeout(10):
        while version.pool.running_count or version.pool.executing_count != count:
            await asyncio.sleep(0.001)


async def held(call: Any, count: int) -> list["asyncio.Future[Any]"]:
    """Start requests that their model holds, after which the instance is idle again."""
    started = [call.start("m", HOLD) for _ in range(count)]
    await at_rest(call, count)
    return started


def counts(call: Any) -> dict[str, Any]:
    [document] = documents(call.host.core.resolve("m").statistics.rows)
    return document


@on_a_loop
async def test_an_instance_runs_the_next_batch_while_requests_of_others_are_unanswered(models: Models) -> None:
    async with models.add("m", HOLDS).hosted() as call:
        started = await held(call, 8)
        assert call.host.core.resolve("m").pool.executing_count == 8
        assert await call("m", ANSWER) == [1]
        assert [outputs["Y"].tolist() for outputs in await asyncio.gather(*started)] == [[n] for n in range(8)]
        assert call.host.core.resolve("m").pool.executing_count == 0


@on_a_loop
async def test_late_requests_are_counted_when_they_are_answered(models: Models) -> None:
    async with models.add("m", HOLDS).hosted() as call:
        answered = await held(call, 2)
        assert (counts(call)["inference_stats"]["success"]["count"], counts(call)["execution_count"]) == (0, 2)
        await call("m", ANSWER)
        await asyncio.gather(*answered)
        dropped = await held(call, 1)
        await call("m", DROP)
        with pytest.raises(Internal, match="dropped the response sender"):
            await dropped[0]
        statistics = counts(call)
        assert (statistics["execution_count"], statistics["inference_count"]) == (5, 5)
        assert statistics["inference_stats"]["success"]["count"] == 4
        assert statistics["inference_stats"]["fail"]["count"] == 1
        assert statistics["inference_stats"]["compute_infer"]["count"] == 5
        assert not statistics["response_stats"]


@on_a_loop
async def test_a_batch_of_which_some_are_answered_is_answered_once(models: Models) -> None:
    async with models.add("m", HOLDS, BATCHES, "dynamic_batching { }").hosted() as call:
        requests = [call.start_with("m", {"X": np.array([[value]], np.int32)}) for value in (HOLD, DROP, HOLD)]
        with pytest.raises(Internal, match="dropped the response sender"):
            await requests[0]
        assert (await requests[1])["Y"].tolist() == [[3]]
        assert not requests[2].done()
        await call.start_with("m", {"X": np.array([[ANSWER]], np.int32)})
        assert (await requests[2])["Y"].tolist() == [[0]]
        statistics = counts(call)
        assert (statistics["execution_count"], statistics["inference_count"]) == (2, 4)
        assert statistics["inference_stats"]["success"]["count"] == 3
        assert statistics["inference_stats"]["fail"]["count"] == 1


@on_a_loop
async def test_a_short_request_overtakes_a_long_one_which_an_unload_waits_for(models: Models, pipe: FileIO) -> None:
    models.add("m", WAITS % pipe.name)
    async with models.hosted() as call:
        version, long = call.host.core.resolve("m"), call.start("m", 7)
        assert await call("m", 0) == [0]
        closing = asyncio.create_task(version.close())
        await asyncio.sleep(0)
        assert (await call.error("m", 0)).message.endswith("has stopped accepting new inference requests")
        assert not long.done() and not closing.done()
        pipe.write(b"g")
        assert (await long)["Y"].tolist() == [7]
        async with asyncio.timeout(10):
            await closing


@pytest.mark.parametrize(
    "more",
    [
        "dynamic_batching { preserve_ordering: true }",
        "sequence_batching { direct { } }",
        'parameters { key: "eagleray.execution_timeout_ms" value { string_value: "60000" } }',
    ],
    ids=["order", "sequences", "time"],
)
def test_answers_that_are_to_come_in_order_or_in_time_are_waited_for(models: Models, pipe: FileIO, more: str) -> None:
    order: list[int] = []

    async def run() -> None:
        models.add("m", WAITS % pipe.name, CONFIG.replace("max_batch_size: 0", "max_batch_size: 1"), more)
        async with models.hosted() as call, asyncio.timeout(10):
            version, ended = call.host.core.resolve("m"), asyncio.Event()

            def reply(_: InferRequest, result: Any) -> None:
                order.extend(result.outputs["Y"][0].tolist())
                if len(order) == 2:
                    ended.set()

            for value in (7, 0):
                array, flags = np.array([[value]], np.int32), SEQUENCE_START | SEQUENCE_END
                version.submit(InferRequest({"X": array}, 1, reply, sequence_id=value + 1, flags=flags))
            while not version.pool.executing_count:
                await asyncio.sleep(0)
            pipe.write(b"g")
            await ended.wait()

    asyncio.run(run())
    assert order == [7, 0]


@on_a_loop
async def test_a_client_that_leaves_is_known_to_a_model_that_has_yet_to_answer(models: Models) -> None:
    async with models.add("m", ENDS_WITH_ITS_CLIENT).hosted() as call:
        version, outcome = call.host.core.resolve("m"), asyncio.get_running_loop().create_future()
        request = InferRequest({"X": np.array([0], np.int32)}, 1, lambda _, result: outcome.set_result(result))
        version.submit(request)
        await at_rest(call, 1)
        version.cancel(request)
        async with asyncio.timeout(10):
            result = await outcome
        assert isinstance(result, Cancelled)
        assert call.host.core.resolve("m").statistics.counts.canceled_count == 1


@on_a_loop
async def test_a_late_answer_ends_the_trace_of_its_request(models: Models) -> None:
    async with models.add("m", HOLDS).hosted() as call:
        outcome = asyncio.get_running_loop().create_future()
        request = InferRequest({"X": np.array([HOLD], np.int32)}, 1, lambda _, result: outcome.set_result(result))
        request.trace = trace = new_trace(TIMESTAMPS | CONTEXT)
        call.host.router.infer("m", -1, request)
        await at_rest(call, 1)
        left_ns = time.monotonic_ns()
        await call("m", ANSWER)
        assert (await outcome).outputs["Y"].tolist() == [0]
        at_ns = [trace.at_ns(name) for name in STAGES]
        assert at_ns == sorted(at_ns, key=int), "each is there, one after the other"
        assert [name for name, _ in trace.timestamps] == STAGES, "each once"
        assert (trace.at_ns("COMPUTE_START") or left_ns) < left_ns < (trace.at_ns("COMPUTE_END") or 0)


@on_a_loop
async def test_a_process_that_dies_fails_what_it_has_not_answered(tmp_path: Path) -> None:
    async with Models(tmp_path, True).add("m", HOLDS).hosted() as call:
        started = await held(call, 2)
        how = "the process of model instance 'm_0' ended with exit code 3"
        for error in (await call.error("m", DIE), *await asyncio.gather(*started, return_exceptions=True)):
            assert isinstance(error, Internal) and error.message.endswith(how)
        assert await call("m", ANSWER) == [1]
        assert counts(call)["inference_stats"]["fail"]["count"] == 3


@on_a_loop
async def test_a_request_that_is_never_answered_costs_its_instance(models: Models) -> None:
    async with models.add("m", HOLDS).hosted() as call:
        [unanswered] = await held(call, 1)
        version = call.host.core.resolve("m")
        assert version.check(600) == ""
        fault = version.check(1e-6)
        with pytest.raises(Internal) as raised:
            await unanswered
        assert raised.value.message.endswith(fault or "ran one batch for more than 1e-06 s")
        assert fault in ("", "model instance 'm_0' has run one batch for more than 1e-06 s")
        assert await call("m", DROP) == [1]


@on_a_loop
async def test_samples_are_answered_late_too(models: Models) -> None:
    sample = """model_warmup { name: "w" batch_size: 1 count: 2
        inputs { key: "X" value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }"""
    async with models.add("m", LATER, more=sample).hosted() as call:
        assert counts(call)["inference_stats"]["success"]["count"] == 2
        assert await call("m", 5) == [5]


@on_a_loop
async def test_models_call_one_that_answers_late(models: Models) -> None:
    async with models.add("m", LATER).add("caller", CALLER % "m").hosted() as call:
        assert await call("caller", 5) == [5]
