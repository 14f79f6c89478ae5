"""Completes a configuration with the model's own `auto_complete_config`, in a process of its own.

A process, because the model is code that may print, hang or crash; Triton too imports it once only for this.
"""

import logging
import os
import sys
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.backends.python.process.environment import ENTRY, REFUSALS, Environment, environment_at
from deployments.core import side_process
from repository_loader.completion import CompletionError, defines_auto_complete, merge_completed
from repository_loader.config_json import ConfigJsonError, config_from_json, config_to_json
from repository_loader.model_files import shown_path
from repository_loader.side_files import named_environment

_LOG = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""An import may take minutes, as of a framework on a file system of the network; what hangs must end."""
_PROCESS = "deployments.backends.python.auto_complete_process"


def complete(
    config: ModelConfig, model_path: str, version_path: str, file_path: str, timeout_s: float = TIMEOUT_S
) -> ModelConfig:
    """Return the configuration with what the model added.

    Only `max_batch_size`, `input`, `output`, the scheduler (if none was chosen) and `decoupled` are taken from the
    model, as Triton does. A model without `auto_complete_config` is not imported; one with an execution environment is
    imported in that.

    Raises:
        ModelLoadError: the model raised, crashed, took too long or returned something else than a configuration.
    """
    if not os.path.isfile(file_path):
        shown = shown_path(file_path, model_path)
        raise ModelLoadError(f"Python model file not found in '{shown}'")
    if not defines_auto_complete(file_path):
        return config
    task = {
        "name": config.name,
        "config": config_to_json(config),
        "model_path": model_path,
        "version_path": version_path,
        "file_path": file_path,
    }
    environment = Environment(sys.executable, os.environ)
    if value := named_environment(config):
        environment = environment_at(value, model_path)
    try:
        result = side_process.run(
            _PROCESS, task, timeout_s, python=environment.python, variables=environment.variables, entry=ENTRY
        )
    except side_process.SideProcessError as error:
        _log(logging.ERROR, config.name, error.output)
        if (refusal := REFUSALS.get(error.exit_code or 0)) is not None:
            raise ModelLoadError(f"auto_complete_config of model '{config.name}' {refusal}") from None
        if error.crashed:
            raise ModelLoadError(f"Stub process '{config.name}' is not healthy: auto_complete_config {error}") from None
        raise ModelLoadError(f"auto_complete_config of model '{config.name}' {error}") from None
    completed = result.value
    failed = "error" in completed
    _log(logging.ERROR if failed else logging.DEBUG, config.name, result.output)
    if failed:
        raise ModelLoadError(str(completed["error"]))
    return config if completed["config"] is None else _merge(config, completed["config"])


def _log(level: int, model_name: str, output: str) -> None:
    if output:
        _LOG.log(level, "auto_complete_config of model '%s' printed:\n%s", model_name, output)


def _merge(config: ModelConfig, returned: dict[str, Any]) -> ModelConfig:
    merged = ModelConfig()
    merged.CopyFrom(config)
    try:
        merge_completed(merged, config_from_json(returned))
    except ConfigJsonError as error:
        raise ModelLoadError(
            f"auto_complete_config function in model '{config.name}' must return a valid pb.ModelConfig object: {error}"
        ) from None
    except CompletionError as error:
        raise ModelLoadError(str(error)) from None
    return merged
