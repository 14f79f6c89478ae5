"""Sequence controls, states and mixtures of datatypes of an ONNX graph that its configuration does not fit."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.onnx_graph import GraphTensor, OnnxGraph
from repository_loader.onnx_signature import check_signature

X = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } '
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: 1 } '
HEAD = 'name: "m" max_batch_size: 8 ' + X + Y


def fp32(name: str, *dims: int) -> GraphTensor:
    return GraphTensor(name, "TYPE_FP32", (-1, *dims))


def sequence(text: str) -> str:
    return f"{HEAD} sequence_batching {{ {text} }}"


def control(values: str) -> str:
    return sequence(f'control_input {{ name: "C" control {{ kind: CONTROL_SEQUENCE_START {values} }} }}')


def state(output: str = "D", datatype: str = "FP32", dims: str = "1", more: str = "") -> str:
    return sequence(
        f'state {{ input_name: "C" output_name: "{output}" data_type: TYPE_{datatype} dims: [{dims}] {more} }}'
    )


CORRELATION = (
    'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } '
    'control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }'
)
FAULTS = {
    "control's datatype": (
        control("int32_false_true: [0, 1]"),
        [fp32("C", 1)],
        "unable to load model 'm', sequence control 'C', the model expects data-type FLOAT but the model configuration "
        "specifies data-type TYPE_INT32",
    ),
    "batch input's datatype": (
        HEAD + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" data_type: TYPE_INT32 source_input: "X" }',
        [fp32("C")],
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for batch input 'C', model provides "
        "TYPE_FP32",
    ),
    "correlation id's datatype": (
        sequence(CORRELATION),
        [fp32("C", 1), fp32("S", 1)],
        "unable to load model 'm', sequence control 'C', the model expects data-type FLOAT but the model configuration "
        "specifies data-type TYPE_UINT64",
    ),
    "control's dims": (
        control("fp32_false_true: [0, 1]"),
        [fp32("C", 4)],
        "unable to load model 'm', sequence control 'C' in model has dims [4] but dims [1] is expected",
    ),
    "control that is not there": (
        control("fp32_false_true: [0, 1]"),
        [fp32("B", 1)],
        "configuration specified sequence control 'C', but model does not provide that input",
    ),
    "state's datatype": (
        state(datatype="INT32"),
        [fp32("C", 1)],
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input state 'C', model provides TYPE_FP32",
    ),
    "state's dims": (
        state(dims="4"),
        [fp32("C", 1)],
        "model 'm', tensor 'C': the model expects 2 dimensions (shape [-1,1]) but the model configuration specifies 2 "
        "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,4])",
    ),
    "state's output that is not there": (
        state(output="E"),
        [fp32("C", 1)],
        "unexpected inference output 'E', allowed outputs are: D, Y",
    ),
    "BF16 beside strings": (
        'name: "m" max_batch_size: 8 input { name: "X" data_type: TYPE_STRING dims: 1 } '
        'output { name: "Y" data_type: TYPE_BF16 dims: 1 }',
        [],
        "unable to load model 'm', ONNX Runtime for Python takes no TYPE_STRING input 'X' beside TYPE_BF16 tensors",
    ),
}
"""Configurations, what the graph takes beside X, and the first fault."""


@pytest.mark.parametrize(("text", "inputs", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_refused(text: str, inputs: list[GraphTensor], reason: str) -> None:
    config = text_format.Parse(text, ModelConfig())
    strings = config.input[0].data_type != config.output[0].data_type
    tensors = (
        [GraphTensor("X", "TYPE_STRING", (-1, 1)), GraphTensor("Y", "TYPE_BF16", (-1, 1))]
        if strings
        else [fp32("X", 1), fp32("Y", 1)]
    )
    graph = OnnxGraph((tensors[0], *inputs), (tensors[1], fp32("D", 1)), (), ())
    assert [fault.message for fault in check_signature(config, graph)][:1] == [reason]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (control("fp32_false_true: [0, 1]"), fp32("C", 1)),
        (control("fp32_false_true: [0, 1]"), fp32("C", -1)),
        (control("fp32_false_true: [0, 1]"), GraphTensor("C", "TYPE_FP32", (), has_shape=False)),
        (state(), fp32("C", 1)),
        (state(dims="-1"), fp32("C", 4)),
    ],
    ids=["control", "variable control", "control of any shape", "state", "variable state"],
)
def test_what_fits_is_taken(text: str, taken: GraphTensor) -> None:
    graph = OnnxGraph((fp32("X", 1), taken), (fp32("Y", 1), fp32("D", 1)), (), ())
    assert not list(check_signature(text_format.Parse(text, ModelConfig()), graph))


def test_an_output_of_which_the_file_has_the_name_alone_is_left_to_onnx_runtime() -> None:
    config = text_format.Parse(
        'name: "m" input { name: "X" data_type: TYPE_FP32 dims: [-1, 1] } '
        'output { name: "Y" data_type: TYPE_INT64 dims: [-1, 7] }',
        ModelConfig(),
    )
    graph = OnnxGraph((fp32("X", 1),), (GraphTensor("Y", "", (), has_shape=False),), (), ())
    assert list(check_signature(config, graph)) == []
