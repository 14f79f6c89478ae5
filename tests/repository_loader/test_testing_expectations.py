"""What the backends of Triton's tests refuse, in Triton's words, when a repository is read."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.loadability import check_loadable
from repository_loader.testing_expectations import check_expectations

IDENTITY = (
    'backend: "identity" input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 } '
    'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }'
)
STREAMING = " model_transaction_policy { decoupled: true }"
REPEAT = (
    'backend: "repeat" input { name: "IN" data_type: TYPE_INT32 dims: -1 } '
    'input { name: "DELAY" data_type: TYPE_UINT32 dims: -1 } input { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } '
    'output { name: "OUT" data_type: TYPE_INT32 dims: 1 } output { name: "IDX" data_type: TYPE_UINT32 dims: 1 }'
)
SQUARE = (
    'backend: "square" input { name: "IN" data_type: TYPE_INT32 dims: 1 } '
    'output { name: "OUT" data_type: TYPE_INT32 dims: 1 }'
)
PAIR = (
    'input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 } '
    "max_batch_size: 4 "
)
ITERATIVE = f'backend: "iterative_sequence" {PAIR} {STREAMING}'


def _sequence(backend: str, *names: str) -> str:
    controls = " ".join(f'control_input {{ name: "{name}" control {{ data_type: TYPE_UINT64 }} }}' for name in names)
    return f'backend: "{backend}" {PAIR} sequence_batching {{ {controls} }}'


SEQUENCE = _sequence("sequence", "START", "READY")
DYNA_SEQUENCE = _sequence("dyna_sequence", "START", "END", "READY", "CORRID")
IMPLICIT_STATE = _sequence("implicit_state", "START", "END", "READY")

GOOD = {
    "identity": IDENTITY,
    "repeat": REPEAT,
    "square": SQUARE + STREAMING,
    "sequence": SEQUENCE,
    "dyna_sequence": DYNA_SEQUENCE,
    "implicit_state": IMPLICIT_STATE,
    "iterative_sequence": ITERATIVE,
    "another": 'backend: "onnxruntime"',
    "a Python-based backend of that name": 'backend: "identity" runtime: "model.py"',
}
BAD = {
    "pairs": (
        IDENTITY + ' input { name: "INPUT1" data_type: TYPE_FP32 dims: 1 }',
        "output",
        "model configuration must have equal input/output pairs",
    ),
    "input name": (
        IDENTITY.replace("INPUT0", "X"),
        "input[0].name",
        "expected input name to follow INPUT<index> pattern, got 'X'",
    ),
    "output name": (
        IDENTITY.replace("OUTPUT0", "Y"),
        "output[0].name",
        "expected output name to follow OUTPUT<index> pattern, got 'Y'",
    ),
    "index": (IDENTITY.replace("OUTPUT0", "OUTPUT1"), "output[0].name", "expected input and output indices to match"),
    "datatype": (
        IDENTITY.replace("FP32", "INT8", 1),
        "output[0].data_type",
        "expected input and output datatype to match, got TYPE_INT8 and TYPE_FP32",
    ),
    "shape": (
        IDENTITY.replace("-1", "4", 1),
        "output[0].dims",
        "expected input and output shape to match, got [4] and [-1]",
    ),
    "batching": (
        REPEAT + " max_batch_size: 2",
        "max_batch_size",
        "repeat backend only supports models with max_batch_size == 0",
    ),
    "inputs": (SQUARE.replace("square", "repeat"), "input", "expected 3 inputs, got 1"),
    "outputs": (
        REPEAT.replace('output { name: "IDX" data_type: TYPE_UINT32 dims: 1 }', ""),
        "output",
        "expected 2 outputs, got 1",
    ),
    "dimensions": (
        REPEAT.replace("dims: -1", "dims: [ -1, 2 ]"),
        "input[0].dims",
        "expected IN shape to have one dimension, got [-1,2]",
    ),
    "delays": (
        REPEAT.replace("dims: -1", "dims: 3", 1),
        "input[1].dims",
        "expected IN and DELAY shape to match, got [3] and [-1]",
    ),
    "wait": (
        REPEAT.replace("TYPE_UINT32 dims: 1", "TYPE_UINT32 dims: 2", 1),
        "input[2].dims",
        "expected WAIT shape to be [1], got [2]",
    ),
    "input of another name": (
        SQUARE.replace("IN", "INN", 1),
        "input[0].name",
        "expected input tensor name to be IN, got INN",
    ),
    "input of another type": (
        SQUARE.replace("INT32", "INT8", 1),
        "input[0].data_type",
        "expected IN datatype to be INT32, got TYPE_INT8",
    ),
    "dims": (SQUARE.replace("dims: 1", "dims: 2", 1), "input[0].dims", "expected IN shape to be [1], got [2]"),
    "controls": (
        _sequence("sequence", "START"),
        "sequence_batching.control_input",
        "'START' and 'READY' must be configured as the control inputs",
    ),
    "output of another shape": (
        SEQUENCE.replace("dims: 1", "dims: 2", 1),
        "output[0].dims",
        "model must have output 'OUTPUT' with shape matching 'INPUT'",
    ),
    "controls with ids": (
        _sequence("dyna_sequence", "START", "READY"),
        "sequence_batching.control_input",
        "'START', 'END, 'READY' and 'CORRID' must be configured as the control inputs",
    ),
    "ids of another type": (
        DYNA_SEQUENCE.replace("TYPE_UINT64", "TYPE_INT32"),
        "sequence_batching.control_input[3]",
        "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type",
    ),
    "controls with states": (
        _sequence("implicit_state", "START"),
        "sequence_batching.control_input",
        "'START', 'END, and 'READY' must be configured as the control inputs",
    ),
    "not decoupled": (
        ITERATIVE.removesuffix(STREAMING),
        "model_transaction_policy",
        "iterative_sequence backend only supports decoupled models",
    ),
}


def _config(text: str) -> ModelConfig:
    return text_format.Parse(f'name: "m" {text}', ModelConfig())


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_takes_what_tritons_takes(text: str) -> None:
    assert list(check_expectations(_config(text))) == []


@pytest.mark.parametrize(("text", "field", "message"), BAD.values(), ids=BAD)
def test_refuses_with_tritons_text(text: str, field: str, message: str) -> None:
    (fault,) = check_loadable(_config(text), {})
    assert (fault.field, fault.message) == (field, message)
