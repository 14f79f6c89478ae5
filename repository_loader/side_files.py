"""Files that a configuration names beside the model file: labels, warmup data, initial state, a Python environment."""

import os
from collections.abc import Iterator
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.findings import Fault
from repository_loader.model_files import leaves_folder

ENVIRONMENT_PARAMETER: Final = "EXECUTION_ENV_PATH"
"""The parameter that names the Python environment of a model's processes: a folder or an archive of one."""
_MODEL_FOLDER: Final = "$$TRITON_MODEL_DIRECTORY"


def check_side_files(config: ModelConfig, model_path: str) -> Iterator[Fault]:
    """Yield a fault for each named file that is not there; names that leave their folder are other rules' to refuse."""
    for field, folder, name in _named(config):
        if name and not leaves_folder(name) and not os.path.isfile(os.path.join(model_path, folder, name)):
            yield Fault(field, f"unable to find '{os.path.join(folder, name)}' in the folder of model '{config.name}'")
    given = config.parameters.get(ENVIRONMENT_PARAMETER)
    environment = "" if given is None else given.string_value
    # Any other path is one of the nodes that the model runs on.
    if _MODEL_FOLDER in environment and not os.path.exists(environment_path(environment, model_path)):
        yield Fault(
            f'parameters["{ENVIRONMENT_PARAMETER}"]', f"the execution environment '{environment}' does not exist"
        )


def environment_path(value: str, model_path: str) -> str:
    """Return where the environment is that a value of `ENVIRONMENT_PARAMETER` names."""
    return value.replace(_MODEL_FOLDER, model_path)


def _named(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    for index, tensor in enumerate(config.output):
        yield f"output[{index}].label_filename", "", tensor.label_filename
    for index, sample in enumerate(config.model_warmup):
        for key, given in sample.inputs.items() if sample.batch_size else ():
            yield f'model_warmup[{index}].inputs["{key}"].input_data_file', "warmup", given.input_data_file
    for index, state in enumerate(config.sequence_batching.state):
        for initial in state.initial_state:
            yield f"sequence_batching.state[{index}].initial_state", "initial_state", initial.data_file
