"""What ONNX Runtime says of a file's tensors, asked in a process of its own."""

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import text_format
from onnx_models import CPU, load, package_of, run, write_model
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.auto_complete import complete
from deployments.backends.backend import ModelLoadError

NODES = ["MatMul X,W Y", "ReduceSum Y Z keepdims=0"]
WEIGHTS = {"W": np.ones((2, 3), np.float32)}
COMPLETE = (
    "max_batch_size: 4 input { name: 'X' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'Y' data_type: TYPE_FP32 dims: 3 }"
)


def asked(path):
    return complete(package_of(path, "").config, "", "", str(path))


def expected(text):
    return text_format.Parse(text, ModelConfig())


def write_ort(tmp_path):
    """Write a model in ONNX Runtime's own format."""
    path = write_model(tmp_path / "model.onnx", NODES[:1], ["X:FLOAT:n,2"], ["Y:FLOAT:n,3"], WEIGHTS)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return tmp_path / "model.ort"


def test_works_out_shapes_that_the_file_leaves_open(tmp_path):
    path = write_model(tmp_path / "model.onnx", NODES, ["X:FLOAT:n,2"], ["Y:FLOAT:?", "Z:FLOAT:?"], WEIGHTS)
    assert asked(path) == expected(
        """input { name: "X" data_type: TYPE_FP32 dims: [-1, 2] }
        output { name: "Y" data_type: TYPE_FP32 dims: [-1, 3] } output { name: "Z" data_type: TYPE_FP32 }"""
    )


def test_works_out_what_an_output_is_that_was_added_by_its_name(tmp_path):
    path = write_model(tmp_path / "model.onnx", NODES, ["X:FLOAT:n,2"], ["Z:FLOAT:"], WEIGHTS)
    model = onnx.load(path)
    model.graph.output.append(onnx.ValueInfoProto(name="Y"))
    onnx.save(model, path)
    assert asked(path).output[1] == expected("output { name: 'Y' data_type: TYPE_FP32 dims: [-1, 3] }").output[0]


def test_reads_its_own_format(tmp_path):
    assert asked(write_ort(tmp_path)) == expected(
        """input { name: "X" data_type: TYPE_FP32 dims: [-1, 2] }
        output { name: "Y" data_type: TYPE_FP32 dims: [-1, 3] }"""
    )


def test_serves_its_own_format(tmp_path):
    (instance, _) = load(write_ort(tmp_path), COMPLETE, CPU)
    assert run(instance, {"X": np.float32([[1, 2]])})[0].outputs["Y"].tolist() == [[3, 3, 3]]


def test_gives_the_reason_why_a_file_is_not_opened(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["Relu nowhere Y"], ["X:FLOAT:n"], ["Y:FLOAT:?"])
    with pytest.raises(ModelLoadError, match=r"onnx runtime error .*Node input 'nowhere' is not a graph input"):
        asked(path)


def test_a_reason_ends_with_its_words(tmp_path):
    path = write_model(tmp_path / "model.onnx", NODES[:1], ["X:FLOAT:n,2"], ["Y:FLOAT:n,3"], WEIGHTS)
    model = onnx.load(path)
    model.ir_version = 99
    onnx.save(model, path)
    with pytest.raises(ModelLoadError, match=r"Unsupported model IR version: 99, max supported IR version: \d+\Z"):
        load(path, COMPLETE, CPU)


def test_needs_the_libraries_of_the_model(tmp_path):
    path = write_model(tmp_path / "model.onnx", NODES, ["X:FLOAT:n,2"], ["Y:FLOAT:?"], WEIGHTS)
    config = package_of(path, 'model_operations { op_library_filename: "none.so" }').config
    with pytest.raises(ModelLoadError, match=r"unable to load custom operator library 'none\.so'"):
        complete(config, str(tmp_path), "", path)
