"""Implicit state of each backend's models, loaded as a server loads them."""

import asyncio

import numpy as np
import pytest

from deployments.backends.backend import ModelLoadError
from protocol.errors import ServingError
from tests.deployments.backends.onnx_models import write_model
from tests.deployments.core.sequence_models import (
    BOTH_STRATEGIES,
    END,
    ONLY,
    PYTHON_SUM,
    START,
    STATE,
    STREAMING,
    SUMS,
    X_Y,
    batching,
    every_backend,
    onnx_sum,
    python,
    serve,
    x,
)


@every_backend
@BOTH_STRATEGIES
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


@BOTH_STRATEGIES
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
