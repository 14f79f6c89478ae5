from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.signature import Signature

CONFIG = """
name: "m" max_batch_size: 8
dynamic_batching { priority_levels: 3 default_priority_level: 2 }
model_transaction_policy { decoupled: true }
input { name: "A" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } optional: true allow_ragged_batch: true }
input { name: "B" data_type: TYPE_STRING dims: [-1, 2] }
output { name: "C" data_type: TYPE_BF16 dims: 4 reshape { shape: [2, 2] } }
"""


def test_reads_what_requests_are_checked_against() -> None:
    signature = Signature.from_config(text_format.Parse(CONFIG, ModelConfig()))
    assert (signature.model_name, signature.max_batch_size, signature.decoupled) == ("m", 8, True)
    assert (signature.priority_levels, signature.default_priority_level) == (3, 2)
    first, second = signature.inputs.values()
    assert (first.dims, first.model_dims, first.reshaped, first.optional, first.ragged) == ((1,), (), True, True, True)
    assert (second.datatype.name, second.dims, second.reshaped) == ("BYTES", (-1, 2), False)
    assert signature.outputs["C"].model_dims == (2, 2)
