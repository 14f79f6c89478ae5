"""What the rate limiter is asked: an instance that needs resources runs only while these are free on its node."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.device_parts import group_of
from repository_loader.package import InstanceSpec

ALL_DEVICES: Final = -1
"""The device of a resource that all devices share (`global`)."""

Given = tuple[tuple[str, int | None, int], ...]
"""`--rate-limit-resource`: names, devices (None: every one) and counts."""


@dataclass(frozen=True, slots=True)
class Resource:
    """So many of a resource of a device."""

    name: str
    device: int
    count: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What an instance needs to run; one of priority 2 gets half as many turns as one of priority 1."""

    resources: tuple[Resource, ...]
    priority: int


class RateLimiter(Protocol):
    """Says when instances may run; an instance is known by a key. Everything here belongs to the loop's thread."""

    async def add(self, key: str, needs: Needs) -> None:
        """Make an instance known.

        Raises:
            ModelLoadError: it could never run.
        """
        ...

    def remove(self, key: str) -> None:
        """Forget an instance, what it holds, and what it waits for."""
        ...

    def acquire(self, key: str, granted: Callable[[], None]) -> None:
        """Call `granted` in a later turn, when the instance may run."""
        ...

    def release(self, key: str) -> None:
        """Give back what the instance held."""
        ...


def needs_of(config: ModelConfig, spec: InstanceSpec) -> Needs | None:
    """Return what an instance needs by its group's `rate_limiter`, None if that is nothing."""
    group = group_of(config, spec.name)
    if group is None:
        return None
    device = _device(spec)
    resources = tuple(
        Resource(each.name, ALL_DEVICES if getattr(each, "global") else device, each.count)
        for each in group.rate_limiter.resources
        if each.count
    )
    return Needs(resources, group.rate_limiter.priority or 1) if resources else None


def _device(spec: InstanceSpec) -> int:
    """Return the device by its number on the node, 0 for the CPU."""
    if spec.kind != "GPU":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = visible[spec.device] if spec.device < len(visible) else ""
    return int(number) if number.isdecimal() else spec.device
