"""Implicit state: tensors that a model returns with one request of a sequence and gets back with the next."""

from collections.abc import Iterable

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelSequenceBatching

from deployments.backends.backend import ModelLoadError
from deployments.core.side_file import read_side_file
from protocol.bytes_tensor import blank_array, decode_bytes
from protocol.datatypes import BY_ENUM
from protocol.errors import ServingError
from protocol.infer import Array, InferRequest, InferResponse, Reply, read_only
from repository_loader.package import ModelPackage

States = dict[str, Array]
"""The states of one sequence, by the name of the input."""


class ImplicitStates:
    """The states of one model.

    A sequence begins with the configured initial state, else with zeros, a variable dimension being 1. What the model
    returns may have another shape each time. A request that fails, or a state that is not returned, changes nothing.
    """

    def __init__(self, package: ModelPackage) -> None:
        """Read the initial states; blocking.

        Raises:
            ModelLoadError: a file is missing or too short.
        """
        config = package.config
        client_outputs = {output.name for output in config.output}
        states = config.sequence_batching.state
        self._initial = {state.input_name: _initial(package, state) for state in states}
        self._outputs = {state.output_name: state.input_name for state in states}
        self._hidden = self._outputs.keys() - client_outputs
        self._same_buffer = {state.input_name for state in states if state.use_same_buffer_for_input_output}

    @staticmethod
    def of(package: ModelPackage) -> "ImplicitStates | None":
        """Return the states of a model, None when it has none."""
        return ImplicitStates(package) if package.config.sequence_batching.state else None

    def begin(self) -> States:
        """Return the states of a sequence that starts."""
        return {name: array.copy() for name, array in self._initial.items()}

    def set(self, request: InferRequest, states: States) -> None:
        """Give a request the states to read, and have the model return all of them."""
        request.inputs.update((name, read_only(array)) for name, array in states.items())
        wanted = request.outputs
        if wanted is not None:
            request.outputs = (*wanted, *(name for name in self._outputs if name not in wanted))

    def keep(self, states: States, response: InferResponse, wanted: tuple[str, ...] | None) -> None:
        """Take the states out of a response, and leave what the client `wanted`."""
        outputs = response.outputs
        for output, name in self._outputs.items():
            array = outputs.get(output)
            if array is None:
                continue
            before = states[name]
            fits = before.shape == array.shape and before.dtype == array.dtype
            if fits and name in self._same_buffer:
                np.copyto(before, array)
            else:
                states[name] = array.copy()
            if output in self._hidden or (wanted is not None and output not in wanted):
                del outputs[output]


class StateKeeper:
    """Takes the states out of each response of a decoupled model; it stands where the request's `reply` stood."""

    __slots__ = ("_kept", "_reply", "_states", "_wanted")

    def __init__(self, states: ImplicitStates, kept: States, wanted: tuple[str, ...] | None, reply: Reply) -> None:
        self._states = states
        self._kept = kept
        self._wanted = wanted
        self._reply = reply

    def __call__(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        """Keep the states of a response, and pass on the rest."""
        if isinstance(result, InferResponse):
            self._states.keep(self._kept, result, self._wanted)
        self._reply(request, result)


def default_states(config: ModelConfig) -> States:
    """Return zeros for each input that takes a state."""
    return {
        state.input_name: blank_array(BY_ENUM[state.data_type].numpy, _shape(config, state.dims))
        for state in config.sequence_batching.state
    }


def _initial(package: ModelPackage, state: ModelSequenceBatching.State) -> Array:
    datatype = BY_ENUM[state.data_type]
    if not state.initial_state:
        return blank_array(datatype.numpy, _shape(package.config, state.dims))
    initial = state.initial_state[0]
    shape = _shape(package.config, initial.dims)
    if not initial.data_file:
        return blank_array(datatype.numpy, shape)
    data = read_side_file(package, "initial_state", initial.data_file, "initial state file")
    count = int(np.prod(shape))
    try:
        if datatype.byte_size:
            return np.frombuffer(data, datatype.numpy, count).reshape(shape).copy()
        return decode_bytes(data, 0, len(data), shape, initial.name, package.name)
    except (ValueError, ServingError) as error:
        raise ModelLoadError(
            f"initial state '{initial.name}' of model '{package.name}': '{initial.data_file}' does not hold "
            f"{count} elements of {datatype.name}"
        ) from error


def _shape(config: ModelConfig, dims: Iterable[int]) -> tuple[int, ...]:
    own = tuple(max(dim, 1) for dim in dims)
    return (1, *own) if config.max_batch_size > 0 else own
