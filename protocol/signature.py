"""A model's inputs and outputs, taken from its configuration once, when it is loaded."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from protocol.datatypes import BY_ENUM, BY_NAME, DataType

if TYPE_CHECKING:  # the processes of Python models start without the package, which takes long to import
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput, ModelSequenceBatching

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
    """A model's inputs and outputs in config order, and whether a batch dimension (`max_batch_size` > 0) leads them.

    One that is `of_one_version` says what a model is asked by whose other versions have other inputs or outputs.
    """

    model_name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    priority_levels: int = 0
    default_priority_level: int = 0
    decoupled: bool = False
    iterative: bool = False
    of_one_version: bool = False

    @property
    def interface(self) -> str:
        """A digest of what requests and responses look like: models of one interface can be asked in the same way.

        "" where not all versions are asked as this says: requests are for whatever serves then.
        """
        if self.of_one_version:
            return ""
        tensors = [
            [(spec.name, spec.datatype.name, spec.dims, spec.model_dims, spec.optional, spec.ragged) for spec in specs]
            for specs in (self.inputs.values(), self.outputs.values())
        ]
        return blake2b(repr((self.max_batch_size, self.decoupled, tensors)).encode(), digest_size=6).hexdigest()

    @property
    def bfloat16_outputs(self) -> frozenset[str]:
        """The outputs whose arrays of UINT16 stand for BF16."""
        return frozenset([spec.name for spec in self.outputs.values() if spec.datatype.name == "BF16"])

    @property
    def takes_strings(self) -> bool:
        """Whether an input is BYTES."""
        return any([spec.datatype.name == "BYTES" for spec in self.inputs.values()])

    @property
    def sends_strings(self) -> bool:
        """Whether an output is BYTES."""
        return any([spec.datatype.name == "BYTES" for spec in self.outputs.values()])

    @classmethod
    def from_config(cls, config: "ModelConfig") -> "Signature":
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
            config.sequence_batching.iterative_sequence,
        )

    @classmethod
    def for_backend(cls, config: "ModelConfig") -> "Signature":
        """Read what a backend runs: with the inputs that a sequence batcher adds, and the states among the outputs."""
        signature = cls.from_config(config)
        sequence = config.sequence_batching
        for entry in sequence.control_input:
            for control in entry.control:
                signature.inputs[entry.name] = TensorSpec(entry.name, _control_type(control), (1,), (1,))
        for state in sequence.state:
            dims, datatype = tuple(state.dims), BY_ENUM[state.data_type]
            signature.inputs[state.input_name] = TensorSpec(state.input_name, datatype, dims, dims)
            signature.outputs.setdefault(state.output_name, TensorSpec(state.output_name, datatype, dims, dims))
        return signature


def _control_type(control: "ModelSequenceBatching.Control") -> DataType:
    if control.int32_false_true:
        return BY_NAME["INT32"]
    if control.fp32_false_true:
        return BY_NAME["FP32"]
    return BY_NAME["BOOL"] if control.bool_false_true else BY_ENUM[control.data_type]


def _model_dims(tensor: "ModelInput | ModelOutput") -> tuple[int, ...]:
    return tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)


def _input_spec(tensor: "ModelInput") -> TensorSpec:
    datatype = BY_ENUM[tensor.data_type]
    dims = tuple(tensor.dims)
    return TensorSpec(tensor.name, datatype, dims, _model_dims(tensor), tensor.optional, tensor.allow_ragged_batch)


def _spec(tensor: "ModelOutput") -> TensorSpec:
    return TensorSpec(tensor.name, BY_ENUM[tensor.data_type], tuple(tensor.dims), _model_dims(tensor))
