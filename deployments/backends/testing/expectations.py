"""What the test backends ask of a configuration."""

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from deployments.backends.backend import ModelLoadError
from protocol.normalise import dims_text
from repository_loader.parameters import read_integer


def expect(condition: bool, otherwise: str) -> None:
    """Raise `ModelLoadError` with the text unless the condition holds."""
    if not condition:
        raise ModelLoadError(otherwise)


def expect_tensors(kind: str, tensors: Sequence[Any], wanted: Sequence[tuple[str, str]]) -> None:
    """Compare the inputs or the outputs with the wanted names and datatypes, which must come in this order."""
    expect(len(tensors) == len(wanted), f"expected {len(wanted)} {kind}s, got {len(tensors)}")
    for tensor, (name, datatype) in zip(tensors, wanted, strict=True):
        expect(tensor.name == name, f"expected {kind} tensor name to be {name}, got {tensor.name}")
        given = DataType.Name(tensor.data_type)
        expect(given == f"TYPE_{datatype}", f"expected {name} datatype to be {datatype}, got {given}")


def expect_scalar(tensor: Any) -> None:
    """Check that a tensor has the dims [1]."""
    expect(list(tensor.dims) == [1], f"expected {tensor.name} shape to be [1], got {dims_text(tensor.dims)}")


def number(config: ModelConfig, name: str) -> int:
    """Return a number of `parameters`, 0 without it or when it is negative."""
    values = {key: value.string_value for key, value in config.parameters.items()}
    return max(0, read_integer(config.name, values, name))
