import os
import sys

import numpy as np
import onnxruntime
import pytest
from onnx_models import CPU, DOUBLING, io, load, package_of, request_of, run, write_model

from deployments.backends.backend import ModelLoadError
from deployments.backends.gpu_fault import GpuFault
from deployments.backends.onnxruntime import _told
from deployments.core import loader
from protocol.errors import Internal, InvalidArgument, Unsupported
from repository_loader.package import InstanceSpec
from tests import serving
from tests.gpus import on_a_gpu
from tests.serving import environment

F = np.float32


@pytest.fixture
def instance(doubling):
    return load(doubling, DOUBLING + io("Z", "output", "FP32", 2))[0]


def test_instances_share_one_session(doubling):
    one, other = load(doubling, DOUBLING)
    assert one._model is other._model and (one.name, other.name) == ("m_0", "m_1")
    one.close()
    assert run(other, {"X": F([[1, 2]])})[0].outputs["Y"].tolist() == [[2, 4]]


def test_requests_are_joined_and_their_rows_handed_back(instance):
    results = run(instance, {"X": F([[1, 1]])}, {"X": F([[2, 2], [3, 3]])}, {"X": F([[4, 4]])})
    assert [result.outputs["Y"].tolist() for result in results] == [[[2, 2]], [[4, 4], [6, 6]], [[8, 8]]]
    assert [list(result.outputs) for result in results] == [["Y", "Z"]] * 3


def test_arrays_over_received_bytes_are_taken_as_they_are(instance):
    received = b"?" + F([[1, 2]]).tobytes()
    (result,) = run(instance, {"X": np.frombuffer(received, "<f4", offset=1).reshape(1, 2)})
    assert result.outputs["Y"].tolist() == [[2, 4]]


def test_only_the_requested_outputs_come_in_the_models_order(instance):
    x = F([[1, 2]])
    assert list(run(instance, request_of(outputs=("Z",), X=x))[0].outputs) == ["Z"]
    assert list(run(instance, request_of(outputs=("Z", "Y"), X=x))[0].outputs) == ["Y", "Z"]
    agreeing = run(instance, request_of(outputs=("Z",), X=x), request_of(outputs=("Z",), X=x))
    assert [list(result.outputs) for result in agreeing] == [["Z"], ["Z"]]
    differing = run(instance, request_of(outputs=("Z",), X=x), request_of(X=x), request_of(outputs=("Y",), X=x))
    assert [list(result.outputs) for result in differing] == [["Z"], ["Y", "Z"], ["Y"]]


@pytest.mark.parametrize(
    ("onnx_type", "config_type", "dtype"),
    [
        ("BOOL", "BOOL", "?"),
        ("UINT8", "UINT8", "u1"),
        ("UINT64", "UINT64", "u8"),
        ("INT8", "INT8", "i1"),
        ("INT64", "INT64", "i8"),
        ("FLOAT16", "FP16", "f2"),
        ("DOUBLE", "FP64", "f8"),
        ("BFLOAT16", "BF16", "u2"),
    ],
)
def test_datatype_goes_through(tmp_path, onnx_type, config_type, dtype):
    path = write_model(tmp_path / "model.onnx", ["Identity X Y"], [f"X:{onnx_type}:n,2"], [f"Y:{onnx_type}:n,2"])
    config = "max_batch_size: 8 " + io("X", "input", config_type, 2) + io("Y", "output", config_type, 2)
    results = run(load(path, config)[0], {"X": np.array([[0, 1]], dtype)}, {"X": np.array([[1, 0]], dtype)})
    assert [result.outputs["Y"].dtype for result in results] == [np.dtype(dtype)] * 2
    assert [result.outputs["Y"].tolist() for result in results] == [[[0, 1]], [[1, 0]]]


@pytest.fixture
def echo(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Identity X Y"], ["X:STRING:n,2"], ["Y:STRING:n,2"])
    return load(path, "max_batch_size: 8 " + io("X", "input", "STRING", 2) + io("Y", "output", "STRING", 2))[0]


def test_bytes_come_back_as_bytes(echo):
    sent = [np.array([[b"a", "é\0".encode()]], object), np.array([["text", b""]], object)]
    results = run(echo, *[{"X": array} for array in sent])
    assert [result.outputs["Y"].tolist() for result in results] == [[[b"a", "é\0".encode()]], [[b"text", b""]]]


def test_bytes_that_are_not_text_fail_only_their_own_request(echo):
    good, bad = np.array([[b"a", b"b"]], object), np.array([[b"a", b"\xff"]], object)
    results = run(echo, {"X": good}, {"X": bad}, {"X": good})
    assert isinstance(results[1], InvalidArgument) and "UTF-8" in str(results[1])
    assert [results[index].outputs["Y"].tolist() for index in (0, 2)] == [[[b"a", b"b"]]] * 2


def test_bytes_that_are_no_text_are_as_long_as_the_longest_where_that_is_little(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Shape X S", "ConstantOfShape S Y"], ["X:STRING:n,1"], ["Y:FLOAT:n,1"])
    zeros = load(path, "max_batch_size: 8192 " + io("X", "input", "STRING", 1) + io("Y", "output", "FP32", 1))[0]
    assert run(zeros, {"X": np.array([[b"\xff"], ["abc"]], object)})[0].outputs["Y"].tolist() == [[0], [0]]
    uneven = np.array([[b"a"]] * 4000 + [[b"\xff" * 150_000]], object)
    with pytest.raises(
        InvalidArgument, match="input 'X' is not valid UTF-8, and its elements differ too much in length"
    ):
        run(zeros, {"X": uneven})


@pytest.mark.parametrize("zero", [b"abc\0", b"\0abc", b"ab\0c", b"ab\0\xff"])
def test_bytes_that_are_no_text_and_have_a_zero_byte_are_not_cut_there(echo, zero):
    with pytest.raises(InvalidArgument, match="'X' is not valid UTF-8, and has an element with a zero byte"):
        run(echo, {"X": np.array([[b"\xff", zero]], object)})


def test_others_are_read_as_they_are_beside_what_is_no_text(echo):
    sent = [np.array([[b"a", text]], object) for text in (b"abc\0", b"\xff")]
    results = run(echo, *[{"X": array} for array in sent])
    assert results[0].outputs["Y"].tolist() == [[b"a", b"abc\0"]]
    assert isinstance(results[1], InvalidArgument)


def test_model_without_batch_dimension(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Add X,X Y"], ["X:FLOAT:2"], ["Y:FLOAT:2"])
    (instance, _) = load(path, io("X", "input", "FP32", 2) + io("Y", "output", "FP32", 2))
    assert run(instance, request_of(rows=1, X=F([1, 2])))[0].outputs["Y"].tolist() == [2, 4]


def test_scalar_output_is_shaped_as_configured(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["ReduceSum X Y0", "Squeeze Y0 Y"], ["X:FLOAT:2"], ["Y:FLOAT:"])
    (instance, _) = load(path, io("X", "input", "FP32", 2) + io("Y", "output", "FP32", 1))
    assert run(instance, request_of(rows=1, X=F([1, 2])))[0].outputs["Y"].tolist() == [3]


@pytest.mark.parametrize(("dims", "answer"), [("1", [1, 2]), ("-1", [1, 2]), ("1, 1", [1, 2])])
def test_output_of_unknown_rank_comes_in_the_shape_that_it_has(tmp_path, dims, answer):
    path = write_model(tmp_path / "model.onnx", ["Reshape X,S Y"], ["X:FLOAT:n,2", "S:INT64:k"], ["Y:FLOAT:?"])
    config = io("X", "input", "FP32", "-1, 2") + io("S", "input", "INT64", -1) + io("Y", "output", "FP32", dims)
    (instance, _) = load(path, config)
    (result,) = run(instance, request_of(rows=1, X=F([[1, 2]]), S=np.array([2])))
    assert result.outputs["Y"].tolist() == answer
    (result,) = run(instance, request_of(rows=1, X=F([[1, 2]]), S=np.array([1, 2])))
    assert result.outputs["Y"].tolist() == [answer]


def test_scalars_may_be_configured_with_several_dims_of_one(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Add X,X Y"], ["X:FLOAT:"], ["Y:FLOAT:"])
    (instance, _) = load(path, io("X", "input", "FP32", "1, 1") + io("Y", "output", "FP32", "1, 1"))
    assert run(instance, request_of(rows=1, X=F([[3]])))[0].outputs["Y"].tolist() == [[6]]


def test_an_output_that_no_reshape_fits_is_named(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Add X,X Y"], ["X:FLOAT:n,2"], ["Y:FLOAT:n"])
    config = "max_batch_size: 8 " + io("X", "input", "FP32", "2") + io("Y", "output", "FP32", "1", "reshape { }")
    (instance, _) = load(path, config)
    with pytest.raises(Internal) as caught:
        run(instance, {"X": F([[1, 2]])})
    assert caught.value.message == ("model 'm' returned output 'Y' with shape [1, 2], which cannot be reshaped to [1]")


def test_reshape_of_an_output_is_undone(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Identity X Y"], ["X:FLOAT:n,2,k"], ["Y:FLOAT:n,2,k"])
    reshape = "reshape { shape: [2, -1] }"
    config = "max_batch_size: 8 " + io("X", "input", "FP32", "2, -1") + io("Y", "output", "FP32", "1, 2, -1", reshape)
    (instance, _) = load(path, config)
    results = run(instance, {"X": np.ones((1, 2, 3), F)}, {"X": np.ones((2, 2, 3), F)})
    assert [result.outputs["Y"].shape for result in results] == [(1, 1, 2, 3), (2, 1, 2, 3)]


KINDS = {
    "elements": ("BATCH_ELEMENT_COUNT", "k", 2004),
    "accumulated": ("BATCH_ACCUMULATED_ELEMENT_COUNT", "k", 2007),
    "accumulated from zero": ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "k", 3007),
    "the most": ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "k", 3000),
    "shapes": ("BATCH_ITEM_SHAPE", "k,1", 2004),
    "shapes, flat": ("BATCH_ITEM_SHAPE_FLATTEN", "k", 2004),
}
"""Kinds of batch inputs: the rank of the tensor, and what the models here make of requests of 3 and 1 elements."""


def test_ragged_inputs_are_joined_flat_with_their_boundaries(tmp_path):
    path = write_model(
        tmp_path / "model.onnx",
        ["Add X,X Y", "Identity E E1", "Identity S S1"],
        ["X:FLOAT:n", "E:FLOAT:k", "S:INT32:r,1"],
        ["Y:FLOAT:n", "E1:FLOAT:k", "S1:INT32:r,1"],
    )
    config = (
        "max_batch_size: 8 "
        + io("X", "input", "FP32", -1, "allow_ragged_batch: true")
        + 'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "E" data_type: TYPE_FP32 source_input: "X" } '
        + 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "S" data_type: TYPE_INT32 source_input: "X" } '
        + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" } '
        + io("Y", "output", "FP32", -1)
        + io("S1", "output", "INT32", 1)
    )
    (instance, _) = load(path, config)
    for _ in range(2):
        results = run(instance, {"X": F([[1, 2, 3]])}, {"X": F([[4]])})
        assert [result.outputs["Y"].tolist() for result in results] == [[[2, 4, 6]], [[8]]]
        assert [result.outputs["S1"].tolist() for result in results] == [[[3]], [[1]]]
    (alone,) = run(instance, {"X": F([[1, 2]])})
    assert alone.outputs["Y"].tolist() == [[2, 4]] and alone.outputs["S1"].tolist() == [[2]]


SCATTERED = {
    "fixed dims": ("2", [[[3, 3]], [[1, 1]]]),
    "reshaped": ("1, 2 reshape { shape: [2] }", [[[[3, 3]]], [[[1, 1]]]]),
}
"""Dims of an output with two values for each request, and what requests of 3 elements and 1 are answered with."""


@pytest.mark.parametrize(("dims", "expected"), SCATTERED.values(), ids=SCATTERED)
def test_outputs_are_cut_by_their_own_dims(tmp_path, dims, expected):
    path = write_model(
        tmp_path / "model.onnx",
        ["Unsqueeze N,one A", "Concat A,A B axis=1", "Reshape B,flat Y", "Identity X X1"],
        ["X:FLOAT:n", "N:FLOAT:m"],
        ["Y:FLOAT:k", "X1:FLOAT:n"],
        {"one": np.array([1]), "flat": np.array([-1])},
    )
    dims, _, reshape = dims.partition(" reshape")
    config = (
        "max_batch_size: 8 "
        + io("X", "input", "FP32", -1, "allow_ragged_batch: true")
        + io("Y", "output", "FP32", dims, reshape and "reshape" + reshape)
        + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32 source_input: "X" } '
        + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" } '
    )
    (instance, _) = load(path, config)
    results = run(instance, {"X": np.ones((1, 3), F)}, {"X": np.ones((1, 1), F)})
    assert [result.outputs["Y"].tolist() for result in results] == expected


def test_an_output_with_too_few_elements_to_cut_is_an_error(tmp_path):
    path = write_model(
        tmp_path / "model.onnx", ["Identity N Y", "Add X,X Z"], ["X:FLOAT:n", "N:FLOAT:m"], ["Y:FLOAT:m"]
    )
    config = (
        "max_batch_size: 8 "
        + io("X", "input", "FP32", -1, "allow_ragged_batch: true")
        + io("Y", "output", "FP32", "2")
        + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32 source_input: "X" } '
        + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" } '
    )
    (instance, _) = load(path, config)
    with pytest.raises(Internal, match="output 'Y' has 2 elements, too few to cut it as input 'X' says"):
        run(instance, {"X": np.ones((1, 3), F)}, {"X": np.ones((1, 1), F)})


@pytest.mark.parametrize(("kind", "rank", "total"), KINDS.values(), ids=KINDS)
def test_every_kind_of_batch_input(tmp_path, kind, rank, total):
    """Each element of Y is the sum of the batch input and 1,000 times its number of elements."""
    nodes = ["ReduceSum E S keepdims=0", "Size E N", "Cast N F to=1", "Mul F,thousand T", "Add S,T U", "Mul X,zero Z"]
    path = write_model(
        tmp_path / "model.onnx",
        [*nodes, "Add Z,U Y"],
        ["X:FLOAT:n", f"E:FLOAT:{rank}"],
        ["Y:FLOAT:n"],
        {"zero": F(0), "thousand": F(1000)},
    )
    config = (
        "max_batch_size: 8 "
        + io("X", "input", "FP32", -1, "allow_ragged_batch: true")
        + f'batch_input {{ kind: {kind} target_name: "E" data_type: TYPE_FP32 source_input: "X" }} '
        + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" } '
        + io("Y", "output", "FP32", -1)
    )
    (instance, _) = load(path, config)
    results = run(instance, {"X": F([[1, 2, 3]])}, {"X": F([[4]])})
    assert [result.outputs["Y"].tolist() for result in results] == [[[total] * 3], [[total]]]


def test_output_without_the_batchs_rows_is_an_error(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["NonZero X N", "Transpose N Y"], ["X:FLOAT:n,2"], ["Y:INT64:k,2"])
    (instance, _) = load(path, "max_batch_size: 8 " + io("X", "input", "FP32", 2) + io("Y", "output", "INT64", 2))
    with pytest.raises(Internal, match=r"failed to split the output tensor 'Y' in responses: expected batch size of 2"):
        run(instance, {"X": np.ones((2, 2), F)})


def test_output_with_too_few_rows_fails_the_requests_that_have_none(tmp_path):
    path = write_model(
        tmp_path / "model.onnx",
        ["Slice X,zero,two Y"],
        ["X:FLOAT:n,2"],
        ["Y:FLOAT:k,2"],
        {"zero": np.array([0]), "two": np.array([2])},
    )
    (instance, _) = load(path, DOUBLING)
    first, second = run(instance, {"X": F([[1, 2]])}, {"X": F([[3, 4], [5, 6]])})
    assert first.outputs["Y"].tolist() == [[1, 2]]
    assert isinstance(second, Unsupported)
    assert second.message == (
        "[request id: <id_unknown>] failed to split the output tensor 'Y' in responses: expected batch size of atleast 3 "
        "in model output, got 2"
    )


def test_output_with_too_few_rows_fails_no_request_that_does_not_want_it(tmp_path):
    nodes, initializers = ["Slice X,zero,one Z", "Add X,X Y"], {"zero": np.array([0]), "one": np.array([1])}
    outputs = ["Y:FLOAT:n,2", "Z:FLOAT:k,2"]
    path = write_model(tmp_path / "model.onnx", nodes, ["X:FLOAT:n,2"], outputs, initializers)
    (instance, _) = load(path, DOUBLING + io("Z", "output", "FP32", 2))
    requests = [request_of(X=F([[1, 2]])), request_of(X=F([[3, 4]]), outputs=("Y",)), request_of(X=F([[5, 6]]))]
    first, second, third = run(instance, *requests)
    assert first.outputs["Z"].tolist() == [[1, 2]]
    assert {name: array.tolist() for name, array in second.outputs.items()} == {"Y": [[6, 8]]}
    assert isinstance(third, Unsupported)


def test_output_of_a_ragged_batch_that_is_neither_cut_nor_has_its_rows_is_an_error(tmp_path):
    path = write_model(
        tmp_path / "model.onnx",
        ["Add X,X Y", "Unsqueeze X,one Z", "Identity E F"],
        ["X:FLOAT:n", "E:FLOAT:k"],
        ["Y:FLOAT:n", "Z:FLOAT:n,1", "F:FLOAT:k"],
        {"one": np.array([1])},
    )
    config = (
        "max_batch_size: 8 "
        + io("X", "input", "FP32", -1, "allow_ragged_batch: true")
        + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "E" data_type: TYPE_FP32 source_input: "X" } '
        + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" } '
        + io("Y", "output", "FP32", -1)
        + io("Z", "output", "FP32", 1)
    )
    (instance, _) = load(path, config)
    with pytest.raises(Internal, match=r"failed to split the output tensor 'Z' in responses: expected batch size of 2"):
        run(instance, {"X": F([[1, 2, 3]])}, {"X": F([[4]])})


def test_error_of_the_runtime_has_tritons_form(instance):
    with pytest.raises(Internal, match=r"^onnx runtime error 2: "):
        run(instance, {"X": np.ones((1, 3), F)})


@pytest.mark.parametrize(("on_gpu", "kind"), [(True, GpuFault), (False, Internal)])
def test_an_error_of_a_gpu_is_none_on_a_cpu(on_gpu, kind):
    text = "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered ; GPU=0"
    error = _told(RuntimeError(text), on_gpu=on_gpu)
    assert type(error) is kind
    assert error.message.startswith("onnx runtime error 1: CUDA failure 700")


X, Y = io("X", "input", "FP32", 2), io("Y", "output", "FP32", 2)
REFUSED = {
    "too many inputs": (
        "max_batch_size: 8 " + X + io("W", "input", "FP32", 2) + Y,
        "unable to load model 'm', configuration expects 2 inputs, model provides 1",
    ),
    "unknown input": (
        "max_batch_size: 8 " + io("W", "input", "FP32", 2) + Y,
        "unexpected inference input 'W', allowed inputs are: X",
    ),
    "unknown output": (
        "max_batch_size: 8 " + X + io("W", "output", "FP32", 2),
        "unexpected inference output 'W', allowed outputs are: Y, Z",
    ),
    "datatype": (
        "max_batch_size: 8 " + io("X", "input", "INT32", 2) + Y,
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'X', model provides TYPE_FP32",
    ),
    "shape with batching": (
        "max_batch_size: 8 " + io("X", "input", "FP32", 3) + Y,
        "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 2 "
        "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,3])",
    ),
    "shape without batching": (
        X + Y,
        "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 1 "
        "dimensions (shape [2])",
    ),
    "optional input of a batching model": (
        "max_batch_size: 8 " + X + io("I", "input", "FP32", 2, "optional: true") + Y,
        "unable to load model 'm', optional input 'I' is not supported for models that support batching",
    ),
    "ragged input that is not flat": (
        "max_batch_size: 8 " + io("X", "input", "FP32", 2, "allow_ragged_batch: true") + Y,
        "unable to load model 'm', the model expects a ragged input 'X' to have shape [-1], but it has shape [-1,2]",
    ),
    "accelerator": (
        DOUBLING + 'optimization { execution_accelerators { cpu_execution_accelerator { name: "abacus" } } }',
        "unknown Execution Accelerator 'abacus' is requested",
    ),
    "accelerator that is not installed": (
        DOUBLING + 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
        "unable to load model 'm', OpenVINOExecutionProvider is not available (ONNX Runtime has "
        f"{', '.join(onnxruntime.get_available_providers())}); leave out execution accelerator 'openvino', or install "
        "onnxruntime-openvino in place of onnxruntime",
    ),
    "thread count": (
        DOUBLING + 'parameters { key: "intra_op_thread_count" value { string_value: "many" } }',
        "unable to load model 'm', 'intra_op_thread_count' is not an integer: 'many'",
    ),
    "boolean": (
        DOUBLING + 'parameters { key: "enable_mem_arena" value { string_value: "perhaps" } }',
        "unable to load model 'm', 'enable_mem_arena' is not a boolean: 'perhaps'",
    ),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_configuration_that_differs_from_the_graph_is_refused(tmp_path, text, reason):
    path = write_model(
        tmp_path / "model.onnx",
        ["Add X,I Y", "Identity X Z"],
        ["X:FLOAT:n,2"],
        ["Y:FLOAT:n,2", "Z:FLOAT:n,2"],
        {"I": F([1, 1])},
    )
    if "optional" in text:
        path = write_model(path, ["Add X,I Y"], ["X:FLOAT:n,2", "I:FLOAT:2"], ["Y:FLOAT:n,2"], {"I": F([1, 1])})
    with pytest.raises(ModelLoadError) as caught:
        loader.prepare(package_of(path, text), CPU)
    assert caught.value.reason == reason


def test_fixed_batch_dimension_cannot_batch(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Add X,X Y"], ["X:FLOAT:1,2"], ["Y:FLOAT:1,2"])
    with pytest.raises(
        ModelLoadError, match=r"the first dimension must be -1; but shape expected by the model is \[1,2\]"
    ):
        load(path, DOUBLING)


def test_optional_input_of_a_model_without_batching(tmp_path):
    path = write_model(
        tmp_path / "model.onnx", ["Add X,I Y"], ["X:FLOAT:2", "I:FLOAT:2"], ["Y:FLOAT:2"], {"I": F([10, 10])}
    )
    (instance, _) = load(path, X + io("I", "input", "FP32", 2, "optional: true") + Y)
    assert run(instance, request_of(rows=1, X=F([1, 2])))[0].outputs["Y"].tolist() == [11, 12]
    assert run(instance, request_of(rows=1, X=F([1, 2]), I=F([0, 0])))[0].outputs["Y"].tolist() == [1, 2]


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelLoadError, match=r"^unable to find '.*nothing.onnx' for model instance 'm_0'$"):
        load(tmp_path / "nothing.onnx", DOUBLING)


def test_file_that_is_not_a_model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=r"^onnx runtime error 7: "):
        load(tmp_path / "model.onnx", DOUBLING)


def test_folder_with_a_model_in_it(doubling, tmp_path):
    (instance, _) = load(tmp_path, DOUBLING)
    assert run(instance, {"X": F([[1, 2]])})[0].outputs["Y"].tolist() == [[2, 4]]


def test_kind_model_is_refused(doubling):
    package = package_of(doubling, DOUBLING + "instance_group { kind: KIND_MODEL count: 1 }")
    with pytest.raises(ModelLoadError, match="KIND_MODEL is not supported by onnxruntime"):
        loader.prepare(package, [InstanceSpec("m_0", "MODEL", 0)])


def test_gpu_that_is_not_there_never_becomes_the_cpu(doubling):
    try:
        (instance,) = load(doubling, DOUBLING, [InstanceSpec("m_0", "GPU", 0)])
    except ModelLoadError as error:
        assert "CUDAExecutionProvider is not available" in error.reason and "eagleray[cuda]" in error.reason
    else:
        assert instance._model._session.session.get_providers()[0] == "CUDAExecutionProvider"


LOADS = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/deployments/backends")
from onnx_models import DOUBLING, load
load(Path(sys.argv[1]), DOUBLING)
"""


def test_a_model_that_is_loaded_reports_nothing_to_anybody(doubling, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    own = environment(HOME=str(home), PYTHONPATH=os.getcwd())
    own.pop("ORT_DISABLE_TELEMETRY", None)
    done = serving.run(sys.executable, "-c", LOADS, str(doubling), env=own)
    assert done.returncode == 0, done.stderr
    assert not list(home.rglob("*onnxruntime*"))


@pytest.mark.gpu
@on_a_gpu
def test_instances_on_a_gpu_answer_as_on_the_cpu(tmp_path):
    weights = np.random.default_rng(0).standard_normal((64, 32), np.float32)
    path = write_model(tmp_path / "model.onnx", ["MatMul X,W Y"], ["X:FLOAT:n,64"], ["Y:FLOAT:n,32"], {"W": weights})
    rows = np.random.default_rng(1).standard_normal((4, 64), np.float32)
    specs = [InstanceSpec(f"m_{index}", "GPU", 0) for index in range(2)]
    for instance in load(
        path, "max_batch_size: 8 " + io("X", "input", "FP32", 64) + io("Y", "output", "FP32", 32), specs
    ):
        [response] = run(instance, {"X": rows})
        np.testing.assert_allclose(response.outputs["Y"], rows @ weights, rtol=0.01, atol=0.01)
