"""Sequence models of each backend, loaded as a server loads them: iterative and generative sequences, and what goes wrong."""

import asyncio
import time

import numpy as np
import pytest

from protocol.errors import ServingError
from protocol.infer import InferRequest
from tests.deployments.core.sequence_models import (
    BOTH_STRATEGIES,
    COUNTDOWN,
    END,
    ITERATIVE,
    ONLY,
    PYTHON_COUNTDOWN,
    PYTHON_SUM,
    START,
    STATE,
    STREAMING,
    X_Y,
    LateLimiter,
    batching,
    onnx_sum,
    python,
    serve,
    x,
)


@pytest.mark.parametrize("decoupled", [False, True])
def test_rows_in_which_no_request_runs_are_not_counted(tmp_path, decoupled):
    async def scenario(served):
        for number in (1, 2, 3, 3):
            await served.infer(x(1, 2), number, 0 if served.version.statistics.counts.success_count == 3 else START)
        counts = served.version.statistics.counts
        while counts.execution_count < 4:  # a decoupled model's answer comes before its batch has ended
            await asyncio.sleep(0)
        return counts.success_count, counts.inference_count

    code = PYTHON_SUM.replace('for name in ("X", "S_IN")', 'for name in ["X"]').replace('("Y", "S_OUT")', '["Y"]')
    if decoupled:
        sending = "request.get_response_sender().send(pb_utils.InferenceResponse(tensors), 1)"
        code = code.replace("responses.append(pb_utils.InferenceResponse(tensors))", sending)
        code = code.replace("return responses", "return None")
    text = 'backend: "python" max_batch_size: 4 ' + X_Y + (STREAMING if decoupled else "") + batching("", "direct { }")
    assert serve(scenario, text, tmp_path, python(tmp_path, code)) == (4, 4)


@BOTH_STRATEGIES
def test_what_waits_for_the_rate_limiter_is_seen_to_wait_and_then_to_run(tmp_path, strategy):
    limiter = LateLimiter()

    async def scenario(served):
        version = served.version
        version.pool.may_run_inline = False
        first = asyncio.gather(*(served.infer(x(1, 1), number, START) for number in (7, 8)))
        await limiter.grant()
        await first
        second = asyncio.ensure_future(served.infer(x(2, 2), 8))  # the row of 7 is empty
        while not limiter.waiting:
            await asyncio.sleep(0)
        waiting = version.statistics.counts.pending_count, version.pool.executing_count, version.oldest_age_ns > 0
        await limiter.grant()
        running = version.statistics.counts.pending_count, version.pool.executing_count, version.oldest_age_ns
        await second
        return waiting, running

    group = 'instance_group { name: "m" kind: KIND_CPU count: 1 rate_limiter { resources { name: "R" count: 1 } } } '
    text = 'backend: "python" max_batch_size: 4 ' + X_Y + group + batching(STATE + "}", strategy)
    waiting, running = serve(scenario, text, tmp_path, python(tmp_path, PYTHON_SUM), limiter=limiter)
    assert waiting == (1, 0, True) and running == (0, 1, 0)


@BOTH_STRATEGIES
def test_what_waits_for_the_rate_limiter_has_waited_behind_its_sequence_too(tmp_path, strategy):
    limiter = LateLimiter()

    async def scenario(served):
        first = asyncio.ensure_future(served.infer(x(1, 1), 7, START))
        second = asyncio.ensure_future(served.infer(x(2, 2), 7))
        while not limiter.waiting:
            await asyncio.sleep(0)
        came_ns = time.monotonic_ns()
        await limiter.grant()
        await first
        while not limiter.waiting:
            await asyncio.sleep(0)
        least_ns = time.monotonic_ns() - came_ns
        age_ns = served.version.oldest_age_ns
        await limiter.grant()
        await second
        return age_ns - least_ns

    group = 'instance_group { name: "m" kind: KIND_CPU count: 1 rate_limiter { resources { name: "R" count: 1 } } } '
    text = 'backend: "python" max_batch_size: 4 ' + X_Y + group + batching(STATE + "}", strategy)
    assert serve(scenario, text, tmp_path, python(tmp_path, PYTHON_SUM), limiter=limiter) >= 0


@BOTH_STRATEGIES
@pytest.mark.parametrize("others", [0, 1])
def test_to_cancel_what_waits_for_the_rate_limiter_ends_its_sequence(tmp_path, strategy, others):
    limiter = LateLimiter()

    async def scenario(served):
        first = asyncio.gather(*(served.infer(x(1, 1), number, START) for number in (7, 8)))
        await limiter.grant()
        await first
        came = asyncio.get_running_loop().create_future()
        middle = InferRequest(x(10, 10), 1, lambda _, result: came.set_result(result), sequence_id=7)
        other = [asyncio.ensure_future(served.infer(x(2, 2), 8)) for _ in range(others)]
        await asyncio.sleep(0)
        served.version.submit(middle)
        while not limiter.waiting:
            await asyncio.sleep(0)
        served.version.cancel(middle)
        with pytest.raises(ServingError, match="must specify the START flag"):
            await served.infer(x(5, 5), 7, END)
        await limiter.grant()
        if not others:
            assert type(await came).__name__ == "Cancelled"
        again = asyncio.ensure_future(served.infer(x(4, 4), 7, ONLY))
        await limiter.grant()
        return await again, [await each for each in other]

    group = 'instance_group { name: "m" kind: KIND_CPU count: 1 rate_limiter { resources { name: "R" count: 1 } } } '
    text = 'backend: "python" max_batch_size: 4 ' + X_Y + group + batching(STATE + "}", strategy)
    again, other = serve(scenario, text, tmp_path, python(tmp_path, PYTHON_SUM), limiter=limiter)
    assert again == {"Y": [[4, 4]]} and other == [{"Y": [[3, 3]]}] * others


@pytest.mark.parametrize("backend", ["iterative_sequence", "python"])
def test_an_iterative_sequence_runs_until_its_model_releases_it(tmp_path, backend):
    async def scenario(served):
        inputs = [{"INPUT": np.array([count], np.int32)} for count in (3, 1, 4)]
        answers = await asyncio.gather(*(served.infer(each) for each in inputs))
        answers.append(await served.infer(inputs[0]))
        counts = served.version.statistics.counts
        assert (counts.success_count, counts.execution_count > 3, counts.pending_count) == (4, True, 0)
        return [[answer["OUTPUT"][0] for answer in each] for each in answers]

    text = f'backend: "{backend}" ' + STREAMING + COUNTDOWN + batching(ITERATIVE)
    file = python(tmp_path, PYTHON_COUNTDOWN)
    assert serve(scenario, text, tmp_path, file) == [[2, 1, 0], [0], [3, 2, 1, 0], [2, 1, 0]]


@pytest.mark.parametrize("own_process", [False, True])
def test_an_iterative_sequence_runs_on_in_coroutines(tmp_path, own_process):
    code = PYTHON_COUNTDOWN.replace("def execute", "async def execute")
    code = code.replace(
        "for request in requests:", "for request in requests:\n                await asyncio.sleep(0.001)"
    )
    code = code.replace("import numpy as np", "import asyncio\n    import numpy as np")

    async def scenario(served):
        answers = await asyncio.gather(*(served.infer({"INPUT": np.array([count], np.int32)}) for count in (3, 1, 4)))
        return [[answer["OUTPUT"][0] for answer in each] for each in answers]

    text = 'backend: "python" ' + STREAMING + COUNTDOWN + batching(ITERATIVE)
    answers = serve(scenario, text, tmp_path, python(tmp_path, code), own_process=own_process)
    assert answers == [[2, 1, 0], [0], [3, 2, 1, 0]]


def test_a_request_that_is_answered_once_may_run_several_times(tmp_path):
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            runs = 0

            def execute(self, requests):
                self.runs += 1
                if self.runs % 3:
                    requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    return [None]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([self.runs], np.int32))])]
    """

    async def scenario(served):
        answers = [(await served.infer({"INPUT": np.array([0], np.int32)}))["OUTPUT"][0] for _ in range(2)]
        counts = served.version.statistics.counts
        assert (counts.success_count, counts.execution_count, counts.pending_count) == (2, 6, 0)
        return answers

    text = 'backend: "python" ' + COUNTDOWN + batching(ITERATIVE)
    assert serve(scenario, text, tmp_path, python(tmp_path, code)) == [3, 6]


def test_a_request_that_is_rescheduled_must_not_be_answered(tmp_path):
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([1], np.int32))])]
    """

    async def scenario(served):
        await served.infer({"INPUT": np.array([2], np.int32)})

    text = 'backend: "python" ' + COUNTDOWN + batching(ITERATIVE)
    with pytest.raises(ServingError, match="Expected a None object in the execute function return list"):
        serve(scenario, text, tmp_path, python(tmp_path, code))


def test_only_an_iterative_sequence_may_be_rescheduled(tmp_path):
    async def scenario(served):
        await served.infer({"INPUT": np.array([2], np.int32)}, 1, ONLY)

    text = 'backend: "python" ' + STREAMING + COUNTDOWN + batching("")
    with pytest.raises(ServingError, match="support only TRITONSERVER_REQUEST_RELEASE_ALL"):
        serve(scenario, text, tmp_path, python(tmp_path, PYTHON_COUNTDOWN))


def test_a_decoupled_model_streams_within_its_sequence(tmp_path):
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.heard = {}

            def execute(self, requests):
                for request in requests:
                    heard = self.heard.setdefault(request.correlation_id(), [])
                    heard.append(int(request.inputs()[0].as_numpy()[0]))
                    sender = request.get_response_sender()
                    for value in heard:
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([value], np.int32))]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """

    async def scenario(served):
        sent = [(1, START), (2, 0), (3, END)]
        answers = [await served.infer({"INPUT": np.array([value], np.int32)}, 8, flags) for value, flags in sent]
        return [[answer["OUTPUT"][0] for answer in each if answer] for each in answers]

    text = 'backend: "python" ' + STREAMING + COUNTDOWN + batching("")
    assert serve(scenario, text, tmp_path, python(tmp_path, code)) == [[1], [1, 2], [1, 2, 3]]


def test_the_instances_of_a_model_are_finalized_at_the_same_time(tmp_path):
    code = """
        import time
        from pathlib import Path

        class TritonPythonModel:
            def initialize(self, args):
                self.path = Path(args["model_repository"], args["model_instance_name"])

            def execute(self, requests):
                return []

            def finalize(self):
                self.path.with_suffix(".begun").touch()
                while len(list(self.path.parent.glob("*.begun"))) < 3:
                    time.sleep(0.01)
                self.path.with_suffix(".ended").touch()
    """

    async def scenario(served):
        pass

    text = 'backend: "python" ' + X_Y + batching("")
    serve(scenario, text, tmp_path, python(tmp_path, code), instances=3, own_process=True)
    assert len(list(tmp_path.glob("*.ended"))) == 3


def test_warm_up_gets_controls_and_states(tmp_path):
    warm = 'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }'

    async def scenario(served):
        return served.version.statistics.counts.execution_count

    text = 'backend: "onnxruntime" max_batch_size: 4 ' + X_Y + warm + batching(STATE + "}")
    assert serve(scenario, text, tmp_path, onnx_sum(tmp_path)) == 1
