"""Files that a configuration names beside the model file: labels, warmup data, initial state, a Python environment."""

import math
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelSequenceBatching, ModelWarmup

from protocol.datatypes import BY_ENUM
from repository_loader.findings import Fault
from repository_loader.model_files import leaves_folder

ENVIRONMENT_PARAMETER: Final = "EXECUTION_ENV_PATH"
"""The parameter that names the Python environment of a model's processes: a folder or an archive of one."""
_MODEL_FOLDER: Final = "$$TRITON_MODEL_DIRECTORY"


class _SideFile(NamedTuple):
    """A file that a field names, "" for none, in one of the model's folders; `of` is what its `tensor` is for."""

    field: str
    folder: str
    name: str
    tensor: ModelWarmup.Input | ModelSequenceBatching.InitialState | None = None
    of: str = ""


def check_side_files(config: ModelConfig, model_path: str) -> Iterator[Fault]:
    """Yield a fault for each named file that is not there, or has too few bytes for its tensor.

    Names that leave their folder are other rules' to refuse.
    """
    for each in _named(config):
        name = os.path.join(each.folder, each.name)
        path = os.path.join(model_path, name)
        if not each.name or leaves_folder(each.name):
            continue
        if not os.path.isfile(path):
            yield Fault(each.field, f"unable to find '{name}' in the folder of model '{config.name}'")
        elif (size := os.path.getsize(path)) < (least := _least_bytes(each)):
            message = f"{each.folder} setting expects {least} bytes for {each.of}, but the data provided is {size}"
            yield Fault(each.field, message)
    environment = named_environment(config)
    # Any other path is one of the nodes that the model runs on.
    if _MODEL_FOLDER in environment and not os.path.exists(environment_path(environment, model_path)):
        yield Fault(
            f'parameters["{ENVIRONMENT_PARAMETER}"]', f"the execution environment '{environment}' does not exist"
        )


def named_environment(config: ModelConfig) -> str:
    """Return the value of `ENVIRONMENT_PARAMETER`; "" is none, and what an empty one says, as in Triton."""
    return config.parameters[ENVIRONMENT_PARAMETER].string_value if ENVIRONMENT_PARAMETER in config.parameters else ""


def environment_path(value: str, model_path: str) -> str:
    """Return where the environment is that a value of `ENVIRONMENT_PARAMETER` names."""
    return value.replace(_MODEL_FOLDER, model_path)


def _least_bytes(file: _SideFile) -> int:
    """Return how long the file is at least; a string tells its length itself, in four bytes."""
    datatype = None if file.tensor is None else BY_ENUM.get(file.tensor.data_type)
    if file.tensor is None or datatype is None or any(dim < 0 for dim in file.tensor.dims):  # other rules refuse these
        return 0
    return (datatype.byte_size or 4) * int(math.prod(file.tensor.dims))


def _named(config: ModelConfig) -> Iterator[_SideFile]:
    for index, output in enumerate(config.output):
        yield _SideFile(f"output[{index}].label_filename", "", output.label_filename)
    for index, sample in enumerate(config.model_warmup):
        for key, given in sample.inputs.items() if sample.batch_size else ():
            field = f'model_warmup[{index}].inputs["{key}"].input_data_file'
            yield _SideFile(field, "warmup", given.input_data_file, given, f"input '{key}'")
    for index, state in enumerate(config.sequence_batching.state):
        for initial in state.initial_state:
            field = f"sequence_batching.state[{index}].initial_state"
            yield _SideFile(field, "initial_state", initial.data_file, initial, f"state '{state.input_name}'")
