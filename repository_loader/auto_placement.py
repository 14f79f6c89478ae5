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
    config: ModelConfig,
    overrides: Overrides,
    parts: Iterable[DevicePart],
    file_bytes: int,
    ensemble: str,
    *,
    room: bool = True,
) -> tuple[Placement, str]:
    """Return `isolated` for what has a reason to be alone and `packed` for the rest, each with the reason.

    `ensemble` is one that is packed and has the model as a step, "" if there is none. Where the cluster has no `room`
    for a replica more, models are packed that would be alone only for the sake of others and reserve no memory.
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
    why = _why_alone(config, overrides, file_bytes, ensemble)
    if why:
        # Memory that Ray reserves makes another replica of the packed one, for which a full cluster has no room.
        alone = room or overrides.memory_bytes is not None
        return ("isolated", why) if alone else ("packed", f"{why}, but the cluster has no room for a replica more")
    return "packed", "small and on the CPU" if traits_of(config).bounded else f"a step of ensemble '{ensemble}'"


def _why_alone(config: ModelConfig, overrides: Overrides, file_bytes: int, ensemble: str) -> str:
    """Return what others would feel of a model in their process, "" for nothing."""
    if config.model_operations.op_library_filename:
        return "loads a library of operators"  # which may end its process
    heavy = file_bytes if overrides.memory_bytes is None else overrides.memory_bytes
    if heavy >= HEAVY_BYTES:
        return f"takes {heavy / 2**20:.0f} MiB"
    # The processes of Python models are their own there too.
    return "" if traits_of(config).bounded or ensemble else "its code is Python"
