from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.completion import (
    Completer,
    CompletionError,
    ModelCompleter,
    complete,
    defines_auto_complete,
    merge_completed,
)
from repository_loader.onnx_graph import GraphTensor, OnnxGraph


def config(text: str) -> ModelConfig:
    return text_format.Parse(f'name: "m" {text}', ModelConfig())


def graph(
    inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]], kind: str = "TYPE_FP32"
) -> OnnxGraph:
    return OnnxGraph(
        tuple(GraphTensor(name, kind, dims) for name, dims in inputs.items()),
        tuple(GraphTensor(name, kind, dims) for name, dims in outputs.items()),
        (),
        (),
    )


NOBODY = Completer(None, "", "", "")
BATCHING = graph({"X": (-1, 4)}, {"Y": (-1,)})
FIXED = graph({"X": (1, 4)}, {"Y": ()})
X = 'input { name: "X" data_type: TYPE_FP32 dims: 4 }'
Y_SCALAR = 'output { name: "Y" data_type: TYPE_FP32 dims: 1 reshape { } }'
SEQUENCE = 'sequence_batching { control_input { name: "START" } state { input_name: "S" output_name: "Y" } }'

ONNX = {
    "batching": (BATCHING, 4, "", f"max_batch_size: 4 dynamic_batching {{ }} {X} {Y_SCALAR}", 1),
    "batching with a size": (
        BATCHING,
        4,
        "max_batch_size: 8",
        f"max_batch_size: 8 dynamic_batching {{ }} {X} {Y_SCALAR}",
        0,
    ),
    "batches of one need no batcher": (BATCHING, 4, "max_batch_size: 1", f"max_batch_size: 1 {X} {Y_SCALAR}", 0),
    "a chosen scheduler stays": (
        BATCHING,
        4,
        "sequence_batching { }",
        f"max_batch_size: 4 sequence_batching {{ }} {X} {Y_SCALAR}",
        1,
    ),
    "inputs that the server makes are left out": (
        graph({"X": (-1, 4), "START": (-1, 1), "S": (-1, 2)}, {"Y": (-1,)}),
        4,
        SEQUENCE,
        f"max_batch_size: 4 {SEQUENCE} {X} {Y_SCALAR}",
        1,
    ),
    "no default size": (
        BATCHING,
        0,
        "",
        'input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: -1 }',
        0,
    ),
    "fixed": (
        FIXED,
        4,
        "",
        'input { name: "X" data_type: TYPE_FP32 dims: [ 1, 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: 1 }',
        0,
    ),
    "one fixed output makes it fixed": (
        graph({"X": (-1, 4)}, {"Y": (3,)}),
        4,
        "",
        'input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: 3 }',
        0,
    ),
    "only the empty list is filled": (
        BATCHING,
        4,
        'input { name: "other" }',
        f'max_batch_size: 4 dynamic_batching {{ }} input {{ name: "other" }} {Y_SCALAR}',
        1,
    ),
    "nothing when both lists are given": (
        BATCHING,
        4,
        'input { name: "a" } output { name: "b" }',
        'input { name: "a" } output { name: "b" }',
        0,
    ),
}


@pytest.mark.parametrize(("model", "default", "given", "completed", "warning_count"), ONNX.values(), ids=ONNX)
def test_completes_onnx(model: OnnxGraph, default: int, given: str, completed: str, warning_count: int) -> None:
    actual = config(f'backend: "onnxruntime" {given}')
    assert len(complete(actual, model, default, NOBODY)) == warning_count
    assert actual == config(f'backend: "onnxruntime" {completed}')


def test_refuses_batches_of_a_model_with_a_fixed_first_dimension() -> None:
    with pytest.raises(CompletionError) as caught:
        complete(config('backend: "onnxruntime" max_batch_size: 2'), FIXED, 4, NOBODY)
    assert str(caught.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_refuses_tensors_that_the_protocol_cannot_carry() -> None:
    with pytest.raises(CompletionError, match="'X' is of type FLOAT8E5M2, which the protocol cannot carry"):
        complete(config('backend: "onnxruntime"'), graph({"X": (1,)}, {"Y": (1,)}, "FLOAT8E5M2"), 4, NOBODY)


CLASSIFIER = OnnxGraph(
    (GraphTensor("X", "TYPE_FP32", (-1, 4)),),
    (GraphTensor("label", "TYPE_INT64", (-1,)), GraphTensor("probability", "ONNX_TYPE_SEQUENCE", ())),
    (),
    (),
    frozenset({"LinearClassifier", "ZipMap"}),
)


def test_says_that_an_output_is_a_sequence_rather_than_that_there_are_no_batches() -> None:
    with pytest.raises(CompletionError) as caught:
        complete(config('backend: "onnxruntime" max_batch_size: 8'), CLASSIFIER, 4, NOBODY)
    assert str(caught.value) == (
        "tensor 'probability' is of type ONNX_TYPE_SEQUENCE, which the protocol cannot carry; convert the model with "
        "zipmap=False"
    )


def test_completes_inputs_beside_a_sequence_that_is_no_configured_output() -> None:
    label = 'max_batch_size: 8 output { name: "label" data_type: TYPE_INT64 dims: 1 reshape { } }'
    actual = config(f'backend: "onnxruntime" {label}')
    complete(actual, CLASSIFIER, 4, NOBODY)
    assert actual == config(f'backend: "onnxruntime" {label} dynamic_batching {{ }} {X}')


SHAPELESS = replace(BATCHING, outputs=(GraphTensor("Y", "TYPE_FP32", (), has_shape=False),))
WORKED_OUT = """input { name: "X" data_type: TYPE_FP32 dims: [-1, 4] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1, 3] }"""


@pytest.mark.parametrize("model", [SHAPELESS, None], ids=["shapes", "everything"])
def test_onnx_runtime_tells_what_the_file_does_not(model: OnnxGraph | None) -> None:
    actual = config('backend: "onnxruntime"')
    asked = Completer(lambda *_: text_format.Parse(WORKED_OUT, ModelConfig()), "", "", "")
    complete(actual, model, 8, asked)
    expected = 'max_batch_size: 8 dynamic_batching { } output { name: "Y" data_type: TYPE_FP32 dims: 3 }'
    assert actual == config(f'backend: "onnxruntime" {X} {expected}')


def test_onnx_runtime_is_not_asked_where_the_file_tells_all() -> None:
    def fail(*_: object) -> ModelConfig:
        raise AssertionError

    complete(config('backend: "onnxruntime"'), BATCHING, 4, Completer(fail, "", "", ""))


def test_what_onnx_runtime_does_not_open_is_completed_from_its_file_if_that_tells() -> None:
    def fail(*_: object) -> ModelConfig:
        raise RuntimeError("not opened")

    asked = Completer(fail, "", "", "")
    actual = config('backend: "onnxruntime"')
    complete(actual, SHAPELESS, 4, asked)
    assert [list(tensor.dims) for tensor in (*actual.input, *actual.output)] == [[-1, 4], [1]]
    for silent in (None, replace(BATCHING, outputs=(GraphTensor("Y", "", (), has_shape=False),))):
        with pytest.raises(CompletionError, match="not opened"):
            complete(config('backend: "onnxruntime"'), silent, 4, asked)


def test_says_that_pytorch_is_not_completed() -> None:
    given = config('backend: "pytorch"')
    warning = "skipping model configuration auto-complete for 'm': not supported for pytorch backend"
    assert complete(given, None, 4, NOBODY) == [warning]
    assert given == config('backend: "pytorch"')


METHOD = "\n    @staticmethod\n    def auto_complete_config(c):\n        return c\n"
SOURCES = {
    "without": ("class TritonPythonModel:\n    def execute(self, r): ...", False),
    "object as base": ("class TritonPythonModel(object):\n    def execute(self, r): ...", False),
    "other class": (f"class Other:{METHOD}\nclass TritonPythonModel:\n    x = 1", False),
    "word in a comment": ("# auto_complete_config\nclass TritonPythonModel:\n    x = 1", False),
    "with": (f"class TritonPythonModel:{METHOD}", True),
    "inside a condition": (f"if True:\n  class TritonPythonModel:{METHOD.replace('    ', '      ')}", True),
    "base class": ("class TritonPythonModel(Base):\n    x = 1", True),
    "metaclass": ("class TritonPythonModel(metaclass=M):\n    x = 1", True),
    "imported": ("from helper import TritonPythonModel", True),
    "star import": ("from helper import *", True),
    "assigned later": ("class TritonPythonModel:\n    x = 1\nTritonPythonModel.auto_complete_config = f", True),
    "no class": ("x = 1", True),
    "broken": ("class TritonPythonModel(", True),
}


@pytest.mark.parametrize(("source", "expected"), SOURCES.values(), ids=SOURCES)
def test_judges_python_models_by_their_source(tmp_path: Path, source: str, expected: bool) -> None:
    path = tmp_path / "model.py"
    path.write_text(source)
    assert defines_auto_complete(str(path)) is expected


def completer(tmp_path: Path, run: ModelCompleter) -> Completer:
    path = tmp_path / "model.py"
    path.write_text(f"class TritonPythonModel:{METHOD}")
    return Completer(run, "model", "version", str(path))


def test_takes_over_what_a_python_model_may_change(tmp_path: Path) -> None:
    def run(given: ModelConfig, model_path: str, version_path: str, file_path: str) -> ModelConfig:
        assert (model_path, version_path) == ("model", "version")
        answer = config(f'{X} output {{ name: "Y" }} max_batch_size: 3 dynamic_batching {{ }}')
        answer.model_transaction_policy.decoupled = True
        answer.parameters["a"].string_value = "discarded"
        answer.instance_group.add(count=7)
        answer.name = "discarded"
        given.name = "changed in place"
        return answer

    actual = config('backend: "python" input { name: "old" }')
    complete(actual, None, 4, completer(tmp_path, run))
    assert actual == config(
        f'backend: "python" {X} output {{ name: "Y" }} max_batch_size: 3 dynamic_batching {{ }} '
        "model_transaction_policy { decoupled: true }"
    )


def test_gives_the_reason_of_a_python_model_that_fails(tmp_path: Path) -> None:
    def run(*_: object) -> ModelConfig:
        raise RuntimeError("no module named 'torch'")

    with pytest.raises(CompletionError, match="no module named 'torch'"):
        complete(config('backend: "python"'), None, 4, completer(tmp_path, run))


def test_keeps_a_chosen_scheduler() -> None:
    chosen = config("dynamic_batching { max_queue_delay_microseconds: 5 }")
    merge_completed(chosen, config("dynamic_batching { }"))
    assert chosen.dynamic_batching.max_queue_delay_microseconds == 5
    with pytest.raises(CompletionError) as caught:
        merge_completed(chosen, config("sequence_batching { }"))
    assert str(caught.value) == (
        "Cannot update scheduling choice from dynamic_batching to sequence_batching when auto-completing."
    )
