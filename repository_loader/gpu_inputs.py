"""Which models take the inputs that a client has put into the memory of their GPU as they are.

Source: the Python backend's `FORCE_CPU_ONLY_INPUT_TENSORS`.
"""

from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import PYTHON, traits_of
from repository_loader.package import InstanceSpec

FORCE_CPU_ONLY: Final = "FORCE_CPU_ONLY_INPUT_TENSORS"
"""Key of `parameters`."""


def may_keep_inputs_on_gpus(config: ModelConfig) -> bool:
    """Whether a model does on a GPU: a Python model that says so, and whose scheduler does not look at inputs."""
    return (
        traits_of(config).name == PYTHON
        and FORCE_CPU_ONLY in config.parameters
        and config.parameters[FORCE_CPU_ONLY].string_value == "no"
        and not config.HasField("sequence_batching")
        and not config.response_cache.enable
    )


def keeps_inputs_on_gpus(config: ModelConfig, spec: InstanceSpec) -> bool:
    """Whether one instance of a model does."""
    return spec.kind == "GPU" and may_keep_inputs_on_gpus(config)
