"""What a model's own configuration says about its place in the cluster: the `eagleray.*` keys of `parameters`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.autoscaling import Autoscaling
from repository_loader.node_needs import ANY_NODE, NodeNeeds
from repository_loader.traffic import NO_TRAFFIC, Traffic, parse_versions, read_percentages, read_weights

Placement = Literal["isolated", "packed", "embedded"]
PlacementChoice = Literal["auto", "isolated", "packed", "embedded"]
PREFIX = "eagleray."
PLACEMENTS: tuple[Placement, ...] = ("isolated", "packed", "embedded")
MAX_REPLICAS = 10_000
LEAST_OF_RESOURCE = 1e-4
"""Ray counts CPUs and GPUs in such parts, and refuses less."""

OVERRIDES = {
    "placement": f"`{'`, `'.join(PLACEMENTS)}`: where the model runs",
    "num_cpus": "CPUs that Ray reserves for each replica (0 to 4096)",
    "num_gpus": "GPUs, or the fraction of one, that Ray reserves for each replica (0 to 1, or a whole number up to "
    "4096)",
    "memory_bytes": "memory that the model takes: of a GPU, from which the fraction follows, or of a node, where Ray "
    "reserves it for each replica",
    "replicas": f"how many replicas (1 to {MAX_REPLICAS})",
    "accelerator_type": "Ray's name of the accelerators (`A100`, `L4`) that nodes must have",
    "node_labels": "labels that nodes must have, as `<name>=<value>`, separated by commas",
    "autoscaling.min_replicas": "fewest replicas of a model that scales with its load "
    f"(0 to {MAX_REPLICAS}, default 1); at 0 the first request waits for a replica",
    "autoscaling.max_replicas": f"most replicas of it (1 to {MAX_REPLICAS}); with this key the model scales",
    "autoscaling.target_ongoing_requests": "requests that shall be under way to each replica, in its queue and running "
    "(default 16)",
    "autoscaling.target_latency_ms": "mean time that a request shall take at most, in milliseconds (default: any)",
    "autoscaling.downscale_delay_s": "how long fewer replicas must have done before there are fewer (default 30); at "
    "least as long as a sequence may be idle",
    "autoscaling.start_timeout_s": "how long a request waits where a model has no replica (default 60)",
    "execution_timeout_ms": "how long a batch of a Python model may run before its process is ended and started again, "
    "or, in its warm-up, the load fails (1 to 86400000; default: for any time)",
    "traffic": "weights of the versions for requests that name none, as `<version>=<weight>`, separated by commas",
    "shadow": "versions that get copies of such requests and whose answers are dropped, as `<version>=<percentage>`",
    "inline": "`true`: its batches may always run on the event loop; `false`: never",
}
"""The keys behind `eagleray.` and what each says; those of `SHORT` may be written without it."""
SHORT = "autoscaling."


class OverrideError(Exception):
    """A value that cannot be read; `key` is the key in `parameters`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, message)
        self.key = key
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values a model sets itself; None where it leaves the choice to the plan."""

    placement: Placement | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    replicas: int | None = None
    inline: bool | None = None
    execution_timeout_ms: float | None = None
    needs: NodeNeeds = ANY_NODE
    autoscaling: Autoscaling | None = None
    traffic: Traffic = NO_TRAFFIC


_NONE: Final = Overrides()


def read_overrides(config: ModelConfig) -> Overrides:
    """Read the keys of `OVERRIDES`.

    Raises:
        OverrideError: a value is not what its key needs.
    """
    if not config.parameters:
        return _NONE
    placement: Placement | None = None
    given = _text(config, "placement")
    if given is not None:
        placement = next((name for name in PLACEMENTS if name == given), None)
        if placement is None:
            key = f"{PREFIX}placement"
            raise OverrideError(key, f"parameter '{key}' of {config.name} must be one of {', '.join(PLACEMENTS)}")
    replicas = _number(config, "replicas", whole=True, least=1, most=MAX_REPLICAS)
    memory = _number(config, "memory_bytes", whole=True, least=0, most=2**60)
    return Overrides(
        placement,
        _resource(config, "num_cpus"),
        _gpus(config),
        None if memory is None else int(memory),
        None if replicas is None else int(replicas),
        _boolean(config, "inline"),
        _number(config, "execution_timeout_ms", whole=False, least=1, most=86_400_000),
        NodeNeeds(_text(config, "accelerator_type") or "", _labels(config)),
        _autoscaling(config),
        Traffic(_by_version(config, "traffic", read_weights), _by_version(config, "shadow", read_percentages)),
    )


def _by_version(config: ModelConfig, name: str, read: Callable[[dict[str, str]], dict[int, float]]) -> dict[int, float]:
    text = _text(config, name)
    if text is None:
        return {}
    try:
        return read(parse_versions(text))
    except ValueError as error:
        key = PREFIX + name
        raise OverrideError(key, f"parameter '{key}' of {config.name}: {error}") from None


def _key(config: ModelConfig, name: str) -> str:
    """Return the key that a model has for a name: with `eagleray.`, or without where that may be and stands alone."""
    key = PREFIX + name
    return name if name.startswith(SHORT) and name in config.parameters and key not in config.parameters else key


def _text(config: ModelConfig, name: str) -> str | None:
    key = _key(config, name)
    return config.parameters[key].string_value.strip() if key in config.parameters else None


def _autoscaling(config: ModelConfig) -> Autoscaling | None:
    most = _number(config, "autoscaling.max_replicas", whole=True, least=1, most=MAX_REPLICAS)
    least = _number(config, "autoscaling.min_replicas", whole=True, least=0, most=MAX_REPLICAS)
    ongoing = _number(config, "autoscaling.target_ongoing_requests", whole=False, least=0.1, most=1e6)
    latency_ms = _number(config, "autoscaling.target_latency_ms", whole=False, least=0, most=1e6)
    delay_s = _number(config, "autoscaling.downscale_delay_s", whole=False, least=0, most=86400)
    start_s = _number(config, "autoscaling.start_timeout_s", whole=False, least=0, most=86400)
    given = (least, ongoing, latency_ms, delay_s, start_s)
    if most is None:
        if any(value is not None for value in given):
            key = f"{PREFIX}autoscaling.max_replicas"
            raise OverrideError(key, f"parameter '{key}' of {config.name} must be given for the model to scale")
        return None
    rules = Autoscaling(1 if least is None else int(least), int(most))
    if rules.min_replicas > rules.max_replicas or f"{PREFIX}replicas" in config.parameters:
        key = _key(config, "autoscaling.max_replicas")
        raise OverrideError(
            key,
            f"parameter '{key}' of {config.name} must be no less than min_replicas, "
            f"and cannot stand beside '{PREFIX}replicas'",
        )
    # A replica without a request may hold sequences for as long as these may be without one.
    idle_s = config.sequence_batching.max_sequence_idle_microseconds / 1e6
    return replace(
        rules,
        target_ongoing_requests=rules.target_ongoing_requests if ongoing is None else ongoing,
        target_latency_ms=latency_ms or 0.0,
        downscale_delay_s=max(rules.downscale_delay_s if delay_s is None else delay_s, idle_s),
        start_timeout_s=rules.start_timeout_s if start_s is None else start_s,
    )


def _labels(config: ModelConfig) -> tuple[tuple[str, str], ...]:
    found = {}
    for entry in (_text(config, "node_labels") or "").split(","):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if name and equals and value:
            found[name] = value
        elif entry.strip():
            key = f"{PREFIX}node_labels"
            raise OverrideError(key, f"parameter '{key}' of {config.name} must be <name>=<value>, separated by commas")
    return tuple(sorted(found.items()))


def _boolean(config: ModelConfig, name: str) -> bool | None:
    text = _text(config, name)
    if text is None:
        return None
    if text not in ("true", "false"):
        key = PREFIX + name
        raise OverrideError(key, f"parameter '{key}' of {config.name} must be true or false")
    return text == "true"


def _gpus(config: ModelConfig) -> float | None:
    value = _resource(config, "num_gpus")
    if value is not None and value > 1 and value != int(value):
        key = f"{PREFIX}num_gpus"
        # Ray gives a process a part of one GPU, or whole ones.
        raise OverrideError(key, f"parameter '{key}' of {config.name} must be a whole number where it is more than 1")
    return value


def _resource(config: ModelConfig, name: str) -> float | None:
    value = _number(config, name, whole=False, least=0, most=4096)
    if value is not None and 0 < value < LEAST_OF_RESOURCE:
        key = PREFIX + name
        raise OverrideError(key, f"parameter '{key}' of {config.name} must be 0 or at least {LEAST_OF_RESOURCE:.4f}")
    return value


def _number(config: ModelConfig, name: str, *, whole: bool, least: float, most: float) -> float | None:
    text = _text(config, name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or (whole and value != int(value)):
        key, kind = _key(config, name), "a whole number" if whole else "a number"
        raise OverrideError(key, f"parameter '{key}' of {config.name} must be {kind} from {least:g} to {most:g}")
    return value
