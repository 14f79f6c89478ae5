"""A model's inputs and outputs, taken from its configuration once, when it is loaded."""

from dataclasses import dataclass
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from protocol.datatypes import BY_ENUM, DataType

ANY_PRIORITY: Final = 2**64 - 1
"""Priorities are unsigned integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One configured input or output.

    `dims` is what the client sends, `model_dims` what the model gets (`reshape.shape`, else `dims`); neither holds the
    batch dimension; -1 is a variable size. `ragged` is `allow_ragged_batch`.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    model_dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False

    @property
    def reshaped(self) -> bool:
        """Whether the model sees another shape than the client."""
        return self.dims != self.model_dims


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's inputs and outputs in config order, and whether a batch dimension (`max_batch_size` > 0) leads them."""

    model_name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    priority_levels: int = 0
    default_priority_level: int = 0
    decoupled: bool = False

    @classmethod
    def from_config(cls, config: ModelConfig) -> "Signature":
        """Read a completed and validated configuration."""
        batching = config.dynamic_batching
        # An ensemble hands any priority on to its steps.
        levels = ANY_PRIORITY if config.platform == "ensemble" else batching.priority_levels
        return cls(
            config.name,
            config.max_batch_size,
            {tensor.name: _input_spec(tensor) for tensor in config.input},
            {tensor.name: _spec(tensor) for tensor in config.output},
            levels,
            batching.default_priority_level,
            config.model_transaction_policy.decoupled,
        )


def _model_dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)


def _input_spec(tensor: ModelInput) -> TensorSpec:
    datatype = BY_ENUM[tensor.data_type]
    dims = tuple(tensor.dims)
    return TensorSpec(tensor.name, datatype, dims, _model_dims(tensor), tensor.optional, tensor.allow_ragged_batch)


def _spec(tensor: ModelOutput) -> TensorSpec:
    return TensorSpec(tensor.name, BY_ENUM[tensor.data_type], tuple(tensor.dims), _model_dims(tensor))
