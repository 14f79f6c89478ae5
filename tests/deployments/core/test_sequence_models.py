"""Sequence models of each backend, loaded as a server loads them: implicit state, iterative and generative sequences."""

import asyncio
import textwrap
import warnings

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from protocol.errors import ServingError
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from repository_loader.normalisation import normalise
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.backends.onnx_models import write_model

START, END, ONLY = SEQUENCE_START, SEQUENCE_END, SEQUENCE_START | SEQUENCE_END
X_Y = 'input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 } '
STATE = 'state { input_name: "S_IN" output_name: "S_OUT" data_type: TYPE_FP32 dims: 2 '


def batching(text, strategy="oldest { max_candidate_sequences: 4 }"):
    return f"sequence_batching {{ {strategy} {text} max_sequence_idle_microseconds: 60000000 }} "


class Served:
    """One loaded model version, on the loop that runs."""

    def __init__(self, version):
        self.version = version

    async def infer(self, inputs, sequence_id=0, flags=0, outputs=None):
        """Return the outputs of the final response, or of all of them for a decoupled model."""
        done = asyncio.get_running_loop().create_future()
        came = []

        def reply(request, result):
            if isinstance(result, ServingError):
                done.set_exception(result)
                return
            came.append({name: array.tolist() for name, array in result.outputs.items()})
            if result.final:
                done.set_result(came)

        request = InferRequest(inputs, 1, reply, sequence_id=sequence_id, flags=flags, outputs=outputs)
        self.version.submit(request)
        answers = await asyncio.wait_for(done, 30)
        return answers if self.version.signature.decoupled else answers[0]


def serve(scenario, text, path="", file="", instances=1, *, own_process=False, close_s=5.0, limiter=None):
    """Load a model of this configuration, run the scenario with it, and close it."""

    async def run():
        config = text_format.Parse(text, ModelConfig())
        config.name = "m"
        list(normalise(config, ()))
        clock = LoopClock(asyncio.get_running_loop())
        package = ModelPackage("m", 1, config, str(path), str(path), str(file))
        specs = [InstanceSpec(f"m_{index}", "CPU", 0, own_process=own_process) for index in range(instances)]
        version = await loader.load(package, specs, clock, Core(clock), limiter=limiter)
        try:
            return await scenario(Served(version))
        finally:
            await version.close(close_s)

    return asyncio.run(run())


def x(*values, batch=True):
    return {"X": np.array([values] if batch else values, np.float32)}


def onnx_sum(tmp_path, dims="n,2"):
    """A model whose output and state are the sum of its input and its state."""
    tensors = [f"{name}:FLOAT:{dims}" for name in ("X", "S_IN")], [f"{name}:FLOAT:{dims}" for name in ("Y", "S_OUT")]
    return write_model(tmp_path / "model.onnx", ["Add X,S_IN Y", "Identity Y S_OUT"], *tensors)


def torch_sum(tmp_path):
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):
        def forward(self, X: torch.Tensor, S_IN: torch.Tensor):
            return X + S_IN, X + S_IN

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Sum()).save(str(tmp_path / "model.pt"))
    return tmp_path / "model.pt"


PYTHON_SUM = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                total = sum(pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("X", "S_IN"))
                tensors = [pb_utils.Tensor(name, total) for name in ("Y", "S_OUT")]
                responses.append(pb_utils.InferenceResponse(tensors))
            return responses
"""


def python(tmp_path, code):
    (tmp_path / "model.py").write_text(textwrap.dedent(code))
    return tmp_path / "model.py"


SUMS = {
    "onnxruntime": onnx_sum,
    "pytorch": torch_sum,
    "python": lambda tmp_path: python(tmp_path, PYTHON_SUM),
}
every_backend = pytest.mark.parametrize("backend", SUMS)


@every_backend
@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_each_sequence_gets_its_own_state_back(tmp_path, backend, strategy):
    async def scenario(served):
        first = await asyncio.gather(
            served.infer(x(1, 2), 5, START), served.infer(x(10, 20), 6, START), served.infer(x(7, 7), 7, ONLY)
        )
        second = await asyncio.gather(served.infer(x(1, 1), 6), served.infer(x(1, 1), 5))
        third = await asyncio.gather(served.infer(x(0, 0), 5, END), served.infer(x(0, 0), 6, END))
        return [[answer["Y"][0] for answer in answers] for answers in (first, second, third)]

    text = f'backend: "{backend}" max_batch_size: 4 ' + X_Y + batching(STATE + "}", strategy)
    assert serve(scenario, text, tmp_path, SUMS[backend](tmp_path)) == [
        [[1, 2], [10, 20], [7, 7]],
        [[11, 21], [2, 3]],
        [[2, 3], [11, 21]],
    ]


@every_backend
def test_a_sequence_goes_on_while_the_row_before_its_own_is_idle(tmp_path, backend):
    async def scenario(served):
        await served.infer(x(9, 9), 5, START)
        answers = [await served.infer(x(1, 2), 6, START), await served.infer(x(1, 1), 6)]
        return [answer["Y"][0] for answer in [*answers, await served.infer(x(1, 1), 5)]]

    text = f'backend: "{backend}" max_batch_size: 4 ' + X_Y + batching(STATE + "}", "direct { }")
    assert serve(scenario, text, tmp_path, SUMS[backend](tmp_path)) == [[1, 2], [2, 3], [10, 10]]


@every_backend
def test_a_state_is_not_sent_unless_it_is_an_output_that_was_asked_for(tmp_path, backend):
    async def scenario(served):
        answers = [await served.infer(x(1, 1), 5, START)]
        answers += [await served.infer(x(1, 1), 5, outputs=(name,)) for name in ("Y", "S_OUT")]
        return [*answers, await served.infer(x(1, 1), 5, END)]

    output = 'output { name: "S_OUT" data_type: TYPE_FP32 dims: 2 } '
    text = f'backend: "{backend}" max_batch_size: 4 ' + X_Y
    both = {"Y": [[1, 1]], "S_OUT": [[1, 1]]}
    file = SUMS[backend](tmp_path)
    answers = serve(scenario, text + output + batching(STATE + "}"), tmp_path, file)
    assert answers[:3] == [both, {"Y": [[2, 2]]}, {"S_OUT": [[3, 3]]}]
    assert answers[3] == {"Y": [[4, 4]], "S_OUT": [[4, 4]]}

    async def hidden(served):
        return [await served.infer(x(1, 1), 5, START), await served.infer(x(1, 1), 5, END, outputs=("Y",))]

    assert serve(hidden, text + batching(STATE + "}"), tmp_path, file) == [{"Y": [[1, 1]]}, {"Y": [[2, 2]]}]


def test_a_failed_request_leaves_the_state_as_it_was(tmp_path):
    failing = PYTHON_SUM.replace("total = ", "total = 1 / request.inputs()[0].as_numpy().flat[0].item() * 0 + ")

    async def scenario(served):
        answers = [await served.infer(x(3, 3), 5, START)]
        with pytest.raises(ServingError, match="ZeroDivisionError"):
            await served.infer(x(0, 9), 5)
        return [*answers, await served.infer(x(1, 1), 5, END)]

    text = 'backend: "python" max_batch_size: 4 ' + X_Y + batching(STATE + "}")
    assert serve(scenario, text, tmp_path, python(tmp_path, failing)) == [{"Y": [[3, 3]]}, {"Y": [[4, 4]]}]


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_a_failed_request_that_has_written_to_its_state_leaves_it_as_it_was(tmp_path, strategy):
    spoiling = PYTHON_SUM.replace(
        "total = ",
        "pb_utils.get_input_tensor_by_name(request, 'S_IN').as_numpy()[:] += 100\n                "
        "1 / (9 - request.inputs()[0].as_numpy().flat[0].item())\n                total = -100 + ",
    )

    async def scenario(served):
        answers = [await served.infer(x(3, 3), 5, START)]
        with pytest.raises(ServingError, match="ZeroDivisionError"):
            await served.infer(x(9, 9), 5)
        return [*answers, await served.infer(x(1, 1), 5, END)]

    text = 'backend: "python" max_batch_size: 4 ' + X_Y + batching(STATE + "}", strategy)
    assert serve(scenario, text, tmp_path, python(tmp_path, spoiling)) == [{"Y": [[3, 3]]}, {"Y": [[4, 4]]}]


BOTH_STRATEGIES = pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])


@BOTH_STRATEGIES
@pytest.mark.parametrize("own_process", [False, True])
def test_a_state_in_the_same_buffer_may_come_back_in_another_datatype(tmp_path, strategy, own_process):
    doubles = PYTHON_SUM.replace(
        "tensors = ", "total = total.astype('f8' if total[0, 0] < 9 else 'f4')\n                tensors = "
    )
    doubles = doubles.replace(
        "pb_utils.Tensor(name, total)", 'pb_utils.Tensor(name, total.astype("f4") if name == "Y" else total)'
    )

    async def scenario(served):
        others = asyncio.gather(*(served.infer(x(8, 9), number, START) for number in (6, 7)))
        return [
            await served.infer(x(value, 1), 5, flags) for value, flags in ((3, START), (9, 0), (1, END))
        ], await others

    text = (
        'backend: "python" max_batch_size: 4 '
        + X_Y
        + batching(STATE + "use_same_buffer_for_input_output: true }", strategy)
    )
    own, others = serve(scenario, text, tmp_path, python(tmp_path, doubles), own_process=own_process)
    assert own == [{"Y": [[3, 1]]}, {"Y": [[12, 2]]}, {"Y": [[13, 3]]}] and others == [{"Y": [[8, 9]]}] * 2


@BOTH_STRATEGIES
@pytest.mark.parametrize("own_process", [False, True])
def test_a_decoupled_model_gets_its_state_back(tmp_path, strategy, own_process):
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    total = sum(pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("X", "S_IN"))
                    sender = request.get_response_sender()
                    for each in (total, 2 * total):
                        tensors = [pb_utils.Tensor(name, each) for name in ("Y", "S_OUT")]
                        sender.send(pb_utils.InferenceResponse(tensors))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """

    async def scenario(served):
        sent = [(1, START), (0, 0), (1, END), (5, ONLY)]
        return [await served.infer(x(value, 2), 8, flags) for value, flags in sent]

    text = 'backend: "python" max_batch_size: 4 ' + X_Y + STREAMING + batching(STATE + "}", strategy)
    answers = serve(scenario, text, tmp_path, python(tmp_path, code), own_process=own_process)
    sums = [[1, 2], [2, 6], [5, 14], [5, 2]]
    assert answers == [[{"Y": [[a, b]]}, {"Y": [[2 * a, 2 * b]]}, {}] for a, b in sums]


@pytest.mark.parametrize("decoupled", [False, True])
def test_rows_in_which_no_request_runs_are_not_counted(tmp_path, decoupled):
    async def scenario(served):
        for number in (1, 2, 3, 3):
            await served.infer(x(1, 2), number, 0 if served.version.statistics.counts.success_count == 3 else START)
        counts = served.version.statistics.counts
        return counts.success_count, counts.inference_count

    code = PYTHON_SUM.replace('for name in ("X", "S_IN")', 'for name in ["X"]').replace('("Y", "S_OUT")', '["Y"]')
    if decoupled:
        sending = "request.get_response_sender().send(pb_utils.InferenceResponse(tensors), 1)"
        code = code.replace("responses.append(pb_utils.InferenceResponse(tensors))", sending)
        code = code.replace("return responses", "return None")
    text = 'backend: "python" max_batch_size: 4 ' + X_Y + (STREAMING if decoupled else "") + batching("", "direct { }")
    assert serve(scenario, text, tmp_path, python(tmp_path, code)) == (4, 4)


class LateLimiter:
    """A rate limiter that grants when the test says so."""

    def __init__(self):
        self.waiting = []

    async def add(self, key, needs):
        pass

    def remove(self, key):
        pass

    def acquire(self, key, granted):
        self.waiting.append(granted)

    def release(self, key):
        pass

    async def grant(self):
        while not self.waiting:
            await asyncio.sleep(0)
        waiting, self.waiting = self.waiting, []
        for granted in waiting:
            granted()


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


def test_a_state_may_begin_with_a_file(tmp_path):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "data").write_bytes(np.array([100, 200], np.float32).tobytes())
    state = STATE + 'initial_state { name: "i" data_type: TYPE_FP32 dims: 2 data_file: "data" } }'

    async def scenario(served):
        return [await served.infer(x(1, 1), number, ONLY) for number in (5, 6)]

    text = 'backend: "onnxruntime" max_batch_size: 4 ' + X_Y + batching(state)
    assert serve(scenario, text, tmp_path, onnx_sum(tmp_path)) == [{"Y": [[101, 201]]}] * 2
    for content, reason in ((b"12", "does not hold 2 elements of FP32"), (None, "unable to read initial state file")):
        if content is None:
            (tmp_path / "initial_state" / "data").unlink()
        else:
            (tmp_path / "initial_state" / "data").write_bytes(content)
        with pytest.raises(ModelLoadError, match=reason):
            serve(scenario, text, tmp_path, tmp_path / "model.onnx")


def test_a_state_may_grow(tmp_path):
    state = 'state { input_name: "S_IN" output_name: "S_OUT" data_type: TYPE_FP32 dims: -1 } '
    tensors = ["X:FLOAT:k", "S_IN:FLOAT:n"], ["Y:FLOAT:m", "S_OUT:FLOAT:m"]
    file = write_model(tmp_path / "model.onnx", ["Concat S_IN,X Y axis=0", "Identity Y S_OUT"], *tensors)

    async def scenario(served):
        return [await served.infer(x(number, batch=False), 5, START if number == 1 else 0) for number in (1, 2, 3)]

    text = (
        'backend: "onnxruntime" input { name: "X" data_type: TYPE_FP32 dims: -1 } '
        'output { name: "Y" data_type: TYPE_FP32 dims: -1 } '
    )
    answers = serve(scenario, text + batching(state), tmp_path, file)
    assert [answer["Y"] for answer in answers] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


IMPLICIT = (
    'backend: "implicit_state" input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } '
    'input { name: "TEST_CASE" data_type: TYPE_INT32 dims: 1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 } '
)
CONTROLS = "".join(
    f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} fp32_false_true: [ 0, 1 ] }} }} '
    for name in ("START", "END", "READY")
)
INT_STATE = 'state { input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: 1 '
STATE_CASES = {
    "no state is configured": (
        0,
        "",
        "unable to add state 'undefined_state'. State configuration is missing for model 'm'.",
    ),
    "another state": (0, INT_STATE + "}", "state 'undefined_state' is not a valid state name."),
    "a state that is not returned": (1, INT_STATE + "}", [4, 4, 4]),
    "one buffer": (2, INT_STATE + "use_same_buffer_for_input_output: true }", [None, None, None]),
    "two buffers": (2, INT_STATE + "}", "Input and output state are using different buffers."),
    "GPU memory": (3, INT_STATE + "}", "growable memory should always provide memory in GPU"),
}


@pytest.mark.parametrize(("case", "state", "expected"), STATE_CASES.values(), ids=STATE_CASES)
def test_what_tritons_test_of_implicit_state_tries(case, state, expected):
    async def scenario(served):
        inputs = {"INPUT": np.array([4], np.int32), "TEST_CASE": np.array([case], np.int32)}
        answers = []
        for flags in (START, 0, END):
            answers.append((await served.infer(dict(inputs), 1, flags)).get("OUTPUT", [None])[0])
        return answers

    text = IMPLICIT + batching(CONTROLS + state, "direct { }")
    if isinstance(expected, str):
        with pytest.raises(ServingError) as refused:
            serve(scenario, text)
        assert str(refused.value) == expected
    else:
        assert serve(scenario, text) == expected


ITERATIVE = "iterative_sequence: true"
COUNTDOWN = (
    'input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 } '
)
STREAMING = "model_transaction_policy { decoupled: true } "
PYTHON_COUNTDOWN = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.left = {}

        def execute(self, requests):
            for request in requests:
                key = request.correlation_id()
                left = self.left.get(key, int(request.inputs()[0].as_numpy().flat[0])) - 1
                self.left[key] = left
                again = left > 0
                request.set_release_flags(
                    pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE if again else pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
                )
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([left], np.int32))])
                flags = 0 if again else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                request.get_response_sender().send(response, flags)
"""


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
