"""Which requests may share a batch, where some of their inputs are in the memory of GPUs."""

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.schedulers.equal_inputs import EqualInputs
from protocol.datatypes import BY_NAME
from protocol.device_input import DeviceInput
from protocol.infer import InferRequest
from protocol.signature import Signature

CONFIG = """
name: "m" max_batch_size: 8
input [
  { name: "A" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "B" data_type: TYPE_INT32 dims: [ 2 ] optional: true }
]
"""


class Memory:
    def open(self) -> None:
        raise AssertionError("what is there is the model's alone")


def on_gpu(*shape: int) -> DeviceInput:
    return DeviceInput(Memory(), 0, shape, BY_NAME["INT32"])  # type: ignore[arg-type]


def on_host(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def equal_inputs(config: str) -> EqualInputs | None:
    return EqualInputs.of(Signature.from_config(text_format.Parse(config, ModelConfig())))


def key(inputs: dict[str, np.ndarray], **devices: DeviceInput) -> tuple[object, ...]:
    equal = equal_inputs(CONFIG)
    assert equal is not None
    return equal.key(InferRequest(inputs, 1, lambda *_: None, devices=devices or None))


def test_inputs_on_gpus_share_a_batch_with_others_of_their_shape() -> None:
    assert key({"A": on_host(1, 3)}) == key({}, A=on_gpu(1, 3)) != key({}, A=on_gpu(1, 4))
    assert key({"A": on_host(1, 3), "B": on_host(1, 2)}) == key({"A": on_host(1, 3)}, B=on_gpu(1, 2))
    assert key({}, A=on_gpu(1, 3), B=on_gpu(1, 2)) != key({}, A=on_gpu(1, 3))


def test_without_rows_a_request_shares_a_batch_of_one() -> None:
    one = equal_inputs(CONFIG.replace("max_batch_size: 8", "max_batch_size: 1"))
    assert one is not None
    empty, other = (InferRequest({"A": on_host(*shape)}, shape[0], lambda *_: None) for shape in ((0, 3), (1, 5)))
    assert one.key(empty) != one.key(other)
    assert equal_inputs(CONFIG.replace("max_batch_size: 8", "max_batch_size: 0")) is None
