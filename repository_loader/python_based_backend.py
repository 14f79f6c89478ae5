"""Python-based backends: a `model.py` that many models share, each of which has only its data in the repository.

Source: core's GetBackendLibraryProperties and SetPythonBasedBackendExecutionEnvironment.
"""

import os
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import PYTHON_RUNTIME, traits_of
from repository_loader.model_files import ModelFileError, is_ensemble, leaves_folder
from repository_loader.side_files import ENVIRONMENT_PARAMETER

_ENVIRONMENT: Final = "pb_exec_env_model.py.tar.gz"


def choose_python_based_backend(config: ModelConfig, model_path: str, backend_directory: str) -> str:
    """Return the file of the model's Python-based backend, "" if it has no such backend.

    `runtime` then says so, and the environment that comes with the backend is the model's unless it names one. A
    backend that Eagleray has itself is taken only where `runtime` asks for the other.

    Raises:
        ModelFileError: `runtime` asks for one and there is none.
    """
    asked = config.runtime == PYTHON_RUNTIME
    if is_ensemble(config) or not (asked or (not config.runtime and not traits_of(config).implementation)):
        return ""
    folders = [model_path]
    if backend_directory and config.backend and not leaves_folder(config.backend):
        folders.insert(0, os.path.join(backend_directory, config.backend))
    found = next((folder for folder in folders if os.path.isfile(os.path.join(folder, PYTHON_RUNTIME))), "")
    if not found:
        if asked:
            raise ModelFileError(
                f"unable to find Python backend based backend library '{PYTHON_RUNTIME}' for model '{config.name}', "
                f"searched: '{config.backend}/{PYTHON_RUNTIME}' in the backend directory and in the model's folder"
            )
        return ""
    config.runtime = PYTHON_RUNTIME
    environment = os.path.join(found, _ENVIRONMENT)
    if ENVIRONMENT_PARAMETER not in config.parameters and os.path.isfile(environment):
        config.parameters[ENVIRONMENT_PARAMETER].string_value = environment
    return os.path.join(found, PYTHON_RUNTIME)
