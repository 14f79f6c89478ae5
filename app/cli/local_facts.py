"""What a Ray would be made of that `eagleray serve` starts on this machine, for commands that start none."""

import ctypes
from typing import Final

from app.other_ray import require_ray
from repository_loader.cluster_facts import ClusterFacts, NodeFacts

_NVML: Final = "libnvidia-ml.so.1"
_ACCELERATOR_TYPE: Final = "ray.io/accelerator-type"


def local_facts(num_cpus: float, num_gpus: int | None, given_gpu_memory_bytes: int = 0) -> ClusterFacts:
    """Return what a `ClusterReader` would find there, but the memory that is free; `num_gpus` None is for all GPUs.

    Ray, which takes a second to import, is asked only where there is NVML, without which it finds none.

    Raises:
        RuntimeError: it is another Ray than is needed.
    """
    found, kind, memory_bytes = num_gpus or 0, "", given_gpu_memory_bytes
    if num_gpus != 0 and _has_nvml():
        require_ray()
        from deployments.serve_internals import gpu_memory_bytes, local_gpus

        found, kind = local_gpus(num_gpus)
        memory_bytes = given_gpu_memory_bytes or gpu_memory_bytes()
    labels = ((_ACCELERATOR_TYPE, kind),) if kind else ()
    return ClusterFacts((NodeFacts(num_cpus, found, 0, kind, memory_bytes if found else 0, labels),))


def _has_nvml() -> bool:
    try:
        ctypes.CDLL(_NVML)
    except OSError:
        return False
    return True
