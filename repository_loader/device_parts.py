"""Divides the instances of a model version by the device that they run on."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository_loader.backend_traits import traits_of
from repository_loader.model_files import is_ensemble
from repository_loader.package import InstanceSpec

ANY_GPU = -1
"""The device of a model that chooses for itself (KIND_MODEL) where there are GPUs."""


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The instances of a model version on one device.

    `gpu` is a GPU by its number in the cluster, `ANY_GPU`, or None, the CPU.
    """

    gpu: int | None
    instances: tuple[InstanceSpec, ...]


def device_parts(config: ModelConfig, num_gpus: int) -> list[DevicePart]:
    """Return the parts of a model version, those on GPUs first; an ensemble is one part without instances.

    Passive groups of Python models, whose code may do something of its own, have instances on devices where others are.
    Those of other backends have none.
    """
    if is_ensemble(config):
        return [DevicePart(None, ())]
    found: dict[int | None, list[InstanceSpec]] = {}
    for group in sorted(config.instance_group, key=attrgetter("passive")):
        if group.passive and not traits_of(config).calls_models:
            continue
        kind = ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        devices: list[int | None] = [None]
        if kind == "GPU":
            devices = [*sorted(set(group.gpus))] or [0]
        elif kind == "MODEL" and num_gpus > 0:
            devices = [ANY_GPU]
        names = [f"{group.name}_{index}" for index in range(group.count)]
        specs = [InstanceSpec(name, kind, 0, passive=group.passive) for name in names]
        for device in devices if specs else ():
            if device in found or not group.passive:
                found.setdefault(device, []).extend(specs)
    gpus = sorted(device for device in found if device is not None)
    ordered = [*gpus, None] if None in found else gpus
    return [DevicePart(device, tuple(found[device])) for device in ordered]


def own_processes(instances: Iterable[InstanceSpec]) -> tuple[InstanceSpec, ...]:
    """Return the instances, each in a process of its own."""
    return tuple(replace(instance, own_process=True) for instance in instances)


def group_of(config: ModelConfig, instance_name: str) -> ModelInstanceGroup | None:
    """Return the group that an instance is of."""
    for group in config.instance_group:
        if re.fullmatch(re.escape(group.name) + r"_[0-9]+(_gpu[0-9]+)?", instance_name):
            return group
    return None


def in_one_process(parts: list[DevicePart]) -> tuple[InstanceSpec, ...]:
    """Return the instances of a process that sees every GPU itself, each with the device it runs on."""
    specs: list[InstanceSpec] = []
    for part in parts:
        device = max(part.gpu or 0, 0)
        for spec in part.instances:
            name = f"{spec.name}_gpu{device}" if device else spec.name
            specs.append(replace(spec, name=name, device=device))
    return tuple(specs)
