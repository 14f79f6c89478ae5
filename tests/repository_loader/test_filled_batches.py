import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader import filled_batches
from repository_loader.filled_batches import batch_sizes, further_weights_bytes, may_fill, weights_bytes
from tests.deployments.backends.onnx_models import write_model

BATCHES = "max_batch_size: 8 dynamic_batching { } "
TENSORRT = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } } '
LIMIT = 'parameters { key: "gpu_mem_limit" value { string_value: "1000000000" } } '
CUDA_LIMIT = (
    "optimization { execution_accelerators { gpu_execution_accelerator { "
    'name: "cuda" parameters { key: "gpu_mem_limit" value: "1000000000" } } } } '
)


def config_of(text):
    return text_format.Parse('name: "m" backend: "onnxruntime" ' + text, ModelConfig())


def write(folder, operator="Conv X,W Y", rows="n"):
    shape = f"FLOAT:{rows},1,4,4"
    weights = {"W": np.ones((1, 1, 1, 1), np.float32)}
    return write_model(folder / "model.onnx", [operator], [f"X:{shape}"], [f"Y:{shape}"], weights)


def test_sizes_are_few_and_those_that_are_preferred(tmp_path):
    path = write(tmp_path)
    assert batch_sizes(config_of("max_batch_size: 64"), path) == [1, 4, 8, 16, 24, 32, 48, 64]
    preferred = "max_batch_size: 20 dynamic_batching { preferred_batch_size: [ 6, 20, 40 ] }"
    assert batch_sizes(config_of(preferred), path) == [1, 4, 6, 8, 16, 20]
    assert [batch_sizes(config_of(f"max_batch_size: {size}"), path) for size in (1, 3, 8)] == [[1], [1, 3], [1, 4, 8]]


@pytest.mark.parametrize(
    ("count", "sizes"), [(7, [1, 4, 8, 16, 24, 32, 64]), (4, [4, 16, 32, 64]), (3, [4, 24, 64]), (1, [64]), (0, [64])]
)
def test_there_are_no_more_sizes_than_sessions_whose_weights_fit(count, sizes, tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setattr(filled_batches, "WEIGHTS_BYTES_IN_ALL", (count + 1) * weights_bytes(path) - 1)
    assert batch_sizes(config_of("max_batch_size: 64"), path) == sizes


def test_however_many_sizes_are_preferred_there_are_twelve_at_most(tmp_path):
    preferred = ", ".join(str(size) for size in range(1, 60))
    config = config_of(f"max_batch_size: 64 dynamic_batching {{ preferred_batch_size: [ {preferred} ] }}")
    sizes = batch_sizes(config, write(tmp_path))
    assert len(sizes) == 12 and sizes == sorted(set(sizes)) and sizes[-1] == 64


@pytest.mark.parametrize(
    ("operator", "rows", "text", "expected"),
    [
        ("Conv X,W Y", "n", BATCHES, True),
        ("Conv X,W Y", "n", "max_batch_size: 8 ", False),
        ("Conv X,W Y", "n", "dynamic_batching { }", False),
        ("Conv X,W Y", "n", BATCHES + TENSORRT, False),
        ("Conv X,W Y", "n", BATCHES + LIMIT, False),
        ("Conv X,W Y", "n", BATCHES + CUDA_LIMIT, False),
        ("Conv X,W Y", "8", BATCHES, False),
        ("Mul X,W Y", "n", BATCHES, False),
    ],
    ids=[
        "so it is",
        "no batches",
        "no rows",
        "with TensorRT",
        "with a limit",
        "with a limit of CUDA's",
        "of one size",
        "without convolutions",
    ],
)
def test_only_batches_of_convolutions_are_filled_up(operator, rows, text, expected, tmp_path):
    assert may_fill(config_of(text), write(tmp_path, operator, rows)) is expected


def test_a_file_is_looked_at_again_when_it_has_changed(tmp_path):
    path = write(tmp_path)
    assert may_fill(config_of(BATCHES), str(tmp_path))
    write(tmp_path, "Mul X,W Y")
    assert not may_fill(config_of(BATCHES), path)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    assert not may_fill(config_of(BATCHES), path)
    assert not may_fill(config_of(BATCHES), str(tmp_path / "nowhere/model.onnx"))


def test_sessions_take_so_much_at_most(tmp_path, monkeypatch):
    path, config = write(tmp_path), config_of(BATCHES)
    (tmp_path / "weights").write_bytes(bytes(1000))
    size = weights_bytes(path)
    assert size > 1000
    assert further_weights_bytes(config, path) == 2 * size
    monkeypatch.setattr(filled_batches, "WEIGHTS_BYTES_IN_ALL", 2 * size + 1)
    assert further_weights_bytes(config, path) == size
    monkeypatch.setattr(filled_batches, "WEIGHTS_BYTES_IN_ALL", size - 1)
    assert further_weights_bytes(config, path) == 0
    monkeypatch.setattr(filled_batches, "LARGEST_WEIGHTS_BYTES", size - 1)
    assert not may_fill(config, path)
    assert further_weights_bytes(text_format.Parse('backend: "python" ' + BATCHES, ModelConfig()), path) == 0
