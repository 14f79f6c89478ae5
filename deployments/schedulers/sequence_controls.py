"""The control tensors of a sequence batcher: they tell a model where in its sequence a request stands."""

from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelSequenceBatching

from protocol.bytes_tensor import object_array
from protocol.datatypes import BY_ENUM
from protocol.errors import InvalidArgument
from protocol.infer import SEQUENCE_END, SEQUENCE_START, Array, InferRequest
from protocol.normalise import request_prefix

_Control = ModelSequenceBatching.Control
_VALUES = (("int32_false_true", np.int32), ("fp32_false_true", np.float32), ("bool_false_true", np.bool_))
_BOTH = SEQUENCE_START | SEQUENCE_END


class SequenceControls:
    """Sets the controls of one model; all of them are optional.

    Each has the shape [1], behind a batch dimension where the model batches. The tensors are shared by requests and
    read-only.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._model_name = config.name
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        controls = [
            (entry.name, control) for entry in config.sequence_batching.control_input for control in entry.control
        ]
        self._by_flags = [self._tensors(controls, flags, ready=True) for flags in range(_BOTH + 1)]
        self._not_ready = self._tensors(controls, 0, ready=False)
        self._id_name = ""
        for name, control in controls:
            if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
                self._id_name = name
                self._id_type = BY_ENUM[control.data_type]
                self._not_ready[name] = self._id_tensor(0)

    def check(self, request: InferRequest) -> None:
        """Raise `InvalidArgument` if the sequence's id is not of the kind that the model takes."""
        if not self._id_name:
            return
        given = "BYTES" if isinstance(request.sequence_id, str) else "UINT64"
        if (given == "BYTES") != (self._id_type.name == "BYTES"):
            raise InvalidArgument(
                f"{request_prefix(request.id)}sequence batching control '{self._id_name}' data-type is '{given}', but "
                f"model '{self._model_name}' expects '{self._id_type.name}'"
            )

    def id_of(self, number: int) -> int | str:
        """Return a number as an id of the kind that the model takes."""
        return str(number) if self._id_name and self._id_type.name == "BYTES" else number

    def set(self, request: InferRequest) -> None:
        """Put the controls among the inputs of a request that is to run."""
        request.inputs.update(self._by_flags[request.flags & _BOTH])
        if self._id_name:
            request.inputs[self._id_name] = self._id_tensor(request.sequence_id)

    def not_ready(self) -> dict[str, Array]:
        """Return the controls of a row of a batch in which no request runs."""
        return self._not_ready

    def _tensors(self, controls: list[tuple[str, Any]], flags: int, *, ready: bool) -> dict[str, Array]:
        truths = {
            _Control.CONTROL_SEQUENCE_START: bool(flags & SEQUENCE_START),
            _Control.CONTROL_SEQUENCE_END: bool(flags & SEQUENCE_END),
            _Control.CONTROL_SEQUENCE_READY: ready,
        }
        tensors = {}
        for name, control in controls:
            for field, dtype in _VALUES:
                values = getattr(control, field)
                if values:
                    tensors[name] = np.full(self._shape, values[truths[control.kind]], dtype)
                    tensors[name].flags.writeable = False
        return tensors

    def _id_tensor(self, sequence_id: int | str) -> Array:
        """Return the id as the model takes it; of one that is too large for its type, the low-order bytes."""
        if self._id_type.name == "BYTES":
            return object_array([str(sequence_id or "").encode()], self._shape)
        whole = np.full(self._shape, int(sequence_id) & (2**64 - 1), np.uint64)
        if self._id_type.byte_size == 4:
            whole = (whole & np.uint64(2**32 - 1)).astype(np.uint32)
        return whole.view(self._id_type.numpy)


def default_controls(config: ModelConfig) -> dict[str, Array]:
    """Return the controls of a request that neither starts nor ends a sequence, without an id."""
    request = InferRequest({}, 1, _nobody)
    SequenceControls(config).set(request)
    return request.inputs


def _nobody(request: InferRequest, result: object) -> None:
    pass
