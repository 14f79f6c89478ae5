"""Python-based backends: a `model.py` that many models share, each of which has only its data in the repository.

Source: core's GetBackendLibraryProperties and SetPythonBasedBackendExecutionEnvironment.
"""

import os
from pathlib import Path
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import PYTHON_RUNTIME, traits_of
from repository_loader.model_files import ModelFileError, files_bytes, is_ensemble, leaves_folder
from repository_loader.package import ModelPackage
from repository_loader.side_files import ENVIRONMENT_PARAMETER

_OWN_FOLDER: Final = "deployments/backends/python_based"
OWN_BACKENDS: Final = str(Path(__file__).parent.parent / _OWN_FOLDER)
"""Those that come with Eagleray, of backends that it also has otherwise."""
_ENVIRONMENT: Final = "pb_exec_env_model.py.tar.gz"


def choose_python_based_backend(config: ModelConfig, model_path: str, backend_directory: str) -> str:
    """Return the file of the model's Python-based backend, "" if it has no such backend.

    `runtime` then says so, and the environment that comes with the backend is the model's unless it names one. Where
    Eagleray has a backend itself that is no Python code, `runtime` must ask for one that is.

    Raises:
        ModelFileError: `runtime` asks for one and there is none.
    """
    asked = config.runtime == PYTHON_RUNTIME
    if is_ensemble(config) or not (asked or (not config.runtime and not traits_of(config).implementation)):
        return ""
    folders = [model_path]
    if config.backend and not leaves_folder(config.backend):
        if backend_directory:
            folders.insert(0, os.path.join(backend_directory, config.backend))
        folders.append(os.path.join(OWN_BACKENDS, config.backend))
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


def file_here(file_path: str) -> str:
    """Return where a model's file is on this node: of a backend that comes with Eagleray, where Eagleray is."""
    _, came_with_eagleray, inner = file_path.rpartition(f"/{_OWN_FOLDER}/")
    own = os.path.join(OWN_BACKENDS, inner)
    return own if came_with_eagleray and not os.path.exists(file_path) and os.path.isfile(own) else file_path


def weights_bytes(package: ModelPackage) -> int:
    """Return how large the file is that a model is loaded from; of a Python-based backend, all that the version has."""
    if package.config.runtime == PYTHON_RUNTIME:
        return files_bytes(package.version_path)
    return files_bytes(package.file_path) if package.file_path else 0
