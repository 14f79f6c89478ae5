"""Flags of tritonserver that are no settings here: accepted, so that a command line can be kept, with a warning.

The list follows `tritonserver --help` of 2.51 and later; `tests/app/test_triton_flags.py` holds all of them.
"""

from collections.abc import Mapping
from typing import Any

from app.backend_config import idle_settings

_THREADS = "an ingress serves all connections on one event loop"
_POOLS = "memory is not pooled by the server; models allocate what they need"
_GRPC_POOLS = "calls are served by an HTTP/2 protocol of Eagleray's own, which has no such pool"
_SAGEMAKER = "the endpoints of SageMaker are not offered yet"
_VERTEX_AI = "the endpoints of Vertex AI are not offered yet"

REASONS: dict[str, str] = {
    "allow-sagemaker": _SAGEMAKER,
    "allow-vertex-ai": _VERTEX_AI,
    "buffer-manager-thread-count": "tensors are not copied by threads of the server",
    "cache-directory": "the response cache is part of Eagleray, and no shared library is loaded",
    "cuda-memory-pool-byte-size": _POOLS,
    "cuda-virtual-address-size": _POOLS,
    "enable-peer-access": "every replica has its GPU to itself, or a share of it",
    "grpc-infer-allocation-pool-size": _GRPC_POOLS,
    "grpc-infer-thread-count": _THREADS,
    "grpc-max-response-pool-size": _GRPC_POOLS,
    "host-policy": "Ray places replicas, and does not pin them to NUMA nodes or cores",
    "http-thread-count": _THREADS,
    "min-supported-compute-capability": "the frameworks refuse a GPU that they do not support",
    "model-load-gpu-limit": "Ray places a replica by the share of a GPU that it asks for",
    "pinned-memory-pool-byte-size": _POOLS,
    "repoagent-directory": "repository agents are part of Eagleray, and no shared library is loaded",
    "sagemaker-port": _SAGEMAKER,
    "sagemaker-safe-port-range": _SAGEMAKER,
    "sagemaker-thread-count": _SAGEMAKER,
    "vertex-ai-default-model": _VERTEX_AI,
    "vertex-ai-port": _VERTEX_AI,
    "vertex-ai-thread-count": _VERTEX_AI,
}
"""Flag, without its dashes → why it means nothing here."""

OLD_FLAGS: dict[str, tuple[str, str]] = {
    "response-cache-byte-size": ("cache-config", "local,size"),
    "trace-count": ("trace-config", "count"),
    "trace-file": ("trace-config", "triton,file"),
    "trace-level": ("trace-config", "level"),
    "trace-log-frequency": ("trace-config", "triton,log-frequency"),
    "trace-rate": ("trace-config", "rate"),
}
"""Flag, without its dashes, that tritonserver still takes → the flag and the key in it that it stands for."""

DEPRECATED: dict[str, str] = {"strict-model-config": "disable-auto-complete-config"}
"""Flag, without its dashes, that tritonserver still takes, as here → the one to give in its place."""

ALIASES: dict[str, tuple[str, ...]] = {"model_repository": ("--model-store",)}
"""Setting → the other flags that tritonserver has for it."""
_OTHER_NAMES = {flag.strip("-").replace("-", "_"): name for name, flags in ALIASES.items() for flag in flags}


def merged_settings(given: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that flags give, over those of the environment, and sentences to warn the user with.

    Flags are named with underscores. Those without effect are left out; old ones become what they stand for. A setting
    of a backend without effect stays, and is warned of.

    Raises:
        ValueError: an old flag and the one that it stands for both give the size of the cache; with Triton's text.
    """
    settings: dict[str, Any] = {}
    old: dict[str, list[str]] = {}
    warnings = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if flag in REASONS:
            warnings.append(f"--{flag} has no effect: {REASONS[flag]}")
        elif flag in OLD_FLAGS:
            new, key = OLD_FLAGS[flag]
            found = [f"{key}={each}" for each in _several(value)]
            warnings += [f"--{flag} is deprecated: use --{new} {setting}" for setting in found]
            old.setdefault(new.replace("-", "_"), []).extend(found)
        elif name in _OTHER_NAMES:
            setting = _OTHER_NAMES[name]
            settings[setting] = (*_several(given.get(setting, ())), *_several(value))
        else:
            if flag in DEPRECATED:
                warnings.append(f"--{flag} is deprecated: use --{DEPRECATED[flag]}")
            settings.setdefault(name, value)
    if "cache_config" in old and "cache_config" in settings:
        raise ValueError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the "
            "other."
        )
    merged = {**environment, **settings}
    for name, found in old.items():
        below = () if name in settings else environment.get(name, ())
        merged[name] = (*_several(below), *found, *_several(settings.get(name, ())))
    warnings += idle_settings(map(str, _several(merged.get("backend_config", ()))))
    return merged, warnings


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
