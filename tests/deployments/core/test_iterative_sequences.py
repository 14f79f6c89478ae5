"""Iterative sequences that end in other ways than by an answer."""

import asyncio
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from protocol.errors import ServingError
from protocol.infer import InferRequest
from repository_loader.normalisation import normalise
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.core.sequence_models import (
    COUNTDOWN,
    ITERATIVE,
    PYTHON_COUNTDOWN,
    STREAMING,
    LateLimiter,
    batching,
    python,
    serve,
)


def test_a_request_that_has_run_again_is_answered_no_more_when_the_process_dies(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(PYTHON_COUNTDOWN))
    config = text_format.Parse('backend: "python" ' + STREAMING + COUNTDOWN + batching(ITERATIVE), ModelConfig())
    config.name = "m"
    list(normalise(config, ()))
    replies: list[Any] = []

    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        package = ModelPackage("m", 1, config, str(tmp_path), str(tmp_path), str(tmp_path / "model.py"))
        version = await loader.load(package, [InstanceSpec("m_0", "CPU", 0, own_process=True)], clock, Core(clock))
        changes = asyncio.Event()
        assert version.pool is not None
        version.pool.when_alive_changes(changes.set)
        inputs = {"INPUT": np.array([5], np.int32)}
        version.submit(InferRequest(inputs, 1, lambda _, result: replies.append(result)))
        async with asyncio.timeout(30):
            while len(replies) < 5:
                await asyncio.sleep(0.01)
            [instance] = version.pool.instances
            os.kill(instance._child.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            await changes.wait()
        await version.close()

    asyncio.run(run())
    assert [response.outputs["OUTPUT"].tolist() for response in replies] == [[4], [3], [2], [1], [0]]


ENDS = {
    "the model raises": "raise ValueError('over')",
    "an error is sent": "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('over')))",
    "the last response is sent": "sender.send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("own_process", [False, True], ids=["here", "process"])
def test_a_request_that_has_ended_does_not_run_again(tmp_path: Path, ends: str, own_process: bool) -> None:
    code = f"""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            runs = 0

            def execute(self, requests):
                self.runs += 1
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([self.runs], np.int32))])
                sender = requests[0].get_response_sender()
                if self.runs == 3:
                    sender.send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    return
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                if self.runs == 2:
                    {ends}
    """

    async def scenario(served):
        first, second = [await ending(served.infer({"INPUT": np.array([0], np.int32)})) for _ in range(2)]
        counts = served.version.statistics.counts
        assert counts.success_count + counts.backend_count == 2 and not counts.pending_count
        return first, second

    async def ending(answers):
        try:
            return (await answers)[-1]["OUTPUT"]
        except ServingError as error:
            return str(error)

    text = 'backend: "python" ' + STREAMING + COUNTDOWN + batching(ITERATIVE)
    first, second = serve(scenario, text, tmp_path, python(tmp_path, code), own_process=own_process)
    assert first == [2] or first.endswith("over")
    assert second == [3]


@pytest.mark.parametrize("length", [1, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("own_process", [False, True], ids=["here", "process"])
def test_each_run_begins_with_what_the_client_has_sent(tmp_path: Path, own_process: bool, length: int) -> None:
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            runs = 0

            def execute(self, requests):
                array = pb_utils.get_input_tensor_by_name(requests[0], "INPUT").as_numpy()
                array += 1
                self.runs += 1
                if self.runs % 3:
                    requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    return [None]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array[-1:])])]
    """

    async def scenario(served):
        return [(await served.infer({"INPUT": np.full(length, sent, np.int32)}))["OUTPUT"] for sent in (10, 20)]

    text = 'backend: "python" ' + COUNTDOWN.replace("dims: 1", "dims: -1") + batching(ITERATIVE)
    answers = serve(scenario, text, tmp_path, python(tmp_path, code), own_process=own_process)
    assert answers == [[11], [21]]


@pytest.mark.parametrize("own_process", [False, True], ids=["here", "process"])
def test_a_request_that_is_rescheduled_for_ever_ends_with_its_model(tmp_path, own_process):
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
    """

    async def scenario(served):
        asked = asyncio.create_task(served.infer({"INPUT": np.array([0], np.int32)}))
        while served.version.statistics.counts.execution_count < 3:
            await asyncio.sleep(0.01)
        return asked

    text = 'backend: "python" ' + COUNTDOWN + batching(ITERATIVE)
    file = python(tmp_path, code)
    asked = serve(scenario, text, tmp_path, file, own_process=own_process, close_s=0.2)
    assert "Server is stopping" in str(asked.exception())


def test_an_iterative_sequence_gets_an_id_of_the_kind_that_its_model_takes(tmp_path):
    control = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
    inputs = {"INPUT": np.array([2], np.int32)}

    async def scenario(served):
        return await served.infer(inputs)

    text = 'backend: "python" ' + STREAMING + COUNTDOWN + batching(f"{ITERATIVE} {control}")
    answers = serve(scenario, text, tmp_path, python(tmp_path, PYTHON_COUNTDOWN))
    assert [answer["OUTPUT"] for answer in answers] == [[1], [0]]


def test_a_request_that_is_cancelled_while_its_second_run_waits_for_its_turn_is_counted_once():
    limiter = LateLimiter()

    async def scenario(served):
        replies: list[Any] = []
        request = InferRequest({"INPUT": np.array([5], np.int32)}, 1, lambda _, result: replies.append(result))
        served.version.submit(request)
        await limiter.grant()
        while not limiter.waiting:  # for its second run
            await asyncio.sleep(0.001)
        served.version.cancel(request)
        await limiter.grant()
        while not isinstance(replies[-1], ServingError):
            await asyncio.sleep(0.001)
        return served.version.statistics.counts

    group = 'instance_group { name: "m" kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } } '
    text = 'backend: "iterative_sequence" ' + group + STREAMING + COUNTDOWN + batching(ITERATIVE)
    counts = serve(scenario, text, limiter=limiter)
    assert (counts.success_count, counts.canceled_count, counts.pending_count) == (0, 1, 0)
