from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.model_metadata import model_metadata, server_metadata

CONFIG = """
name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" max_batch_size: 8
input { name: "A" data_type: TYPE_STRING dims: 16 reshape { shape: [4, 4] } }
output { name: "B" data_type: TYPE_BF16 dims: [-1, 2] }
"""


def test_shapes_are_the_clients() -> None:
    config = text_format.Parse(CONFIG, ModelConfig())
    assert model_metadata(config, {10, 2}) == {
        "name": "m",
        "versions": ["2", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "A", "datatype": "BYTES", "shape": [-1, 16]}],
        "outputs": [{"name": "B", "datatype": "BF16", "shape": [-1, -1, 2]}],
    }


def test_without_batching_and_platform() -> None:
    config = ModelConfig(name="m", backend="python")
    config.input.add(name="A", data_type=11, dims=[3])
    metadata = model_metadata(config, [1])
    assert metadata["platform"] == "python"
    assert metadata["inputs"][0]["shape"] == [3]


def test_server_lists_its_extensions() -> None:
    metadata = server_metadata("eagleray", "1.0")
    assert list(metadata) == ["name", "version", "extensions"]
    assert "binary_tensor_data" in metadata["extensions"]
