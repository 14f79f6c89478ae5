"""`auto`: where a model version runs, and why, when neither its operator nor its configuration says."""

from collections.abc import Iterable

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import traits_of
from repository_loader.device_parts import DevicePart
from repository_loader.model_files import is_ensemble
from repository_loader.overrides import Overrides, Placement

HEAVY_BYTES = 64 << 20
"""Weights from which a model has a process of its own: its loading and its memory would be felt by the others."""


def place_automatically(
    config: ModelConfig, overrides: Overrides, parts: Iterable[DevicePart], file_bytes: int, ensemble: str
) -> tuple[Placement, str]:
    """Return `isolated` for what has a reason to be alone and `packed` for the rest, each with the reason.

    `ensemble` is one that is packed and has the model as a step, "" if there is none.
    """
    if any(part.gpu is not None for part in parts):
        return "isolated", "runs on a GPU"
    if overrides.replicas is not None:
        return "isolated", f"has {overrides.replicas} replicas of its own"
    if overrides.autoscaling is not None:
        return "isolated", "scales with its load"
    if overrides.num_cpus is not None:
        return "isolated", f"asks for {overrides.num_cpus:g} CPUs"
    if overrides.needs:
        return "isolated", f"asks for nodes with {overrides.needs}"
    if is_ensemble(config):
        return "packed", "an ensemble has no weights and no code"
    if config.model_operations.op_library_filename:
        return "isolated", "loads a library of operators"  # which may end its process
    heavy = file_bytes if overrides.memory_bytes is None else overrides.memory_bytes
    if heavy >= HEAVY_BYTES:
        return "isolated", f"takes {heavy / 2**20:.0f} MiB"
    if not traits_of(config).bounded:
        # Its processes are its own there too.
        return ("packed", f"a step of ensemble '{ensemble}'") if ensemble else ("isolated", "its code is Python")
    return "packed", "small and on the CPU"
