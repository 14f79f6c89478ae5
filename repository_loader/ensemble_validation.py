"""The rules of one ensemble that need no other model, with Triton's texts.

Source: core's ValidateEnsembleSchedulingConfig.
"""

from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.ensemble_conditions import ConditionError, Conditions, read_conditions
from repository_loader.findings import Fault

_BASE = "ensemble_scheduling"


def check_ensemble(config: ModelConfig) -> Iterator[Fault]:
    """Yield the faults of an ensemble."""
    name = config.name
    if config.instance_group:
        yield Fault("instance_group", f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        yield Fault("optimization", f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        yield Fault("model_warmup", f"model_warmup can not be specified for ensemble '{name}'")
    if not config.HasField("ensemble_scheduling"):
        yield Fault("platform", f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble")
        return
    if not config.ensemble_scheduling.step:
        yield Fault(_BASE, f"must specify 'step' for ensemble '{name}'")
        return
    faults = [*_check_steps(config)]
    yield from faults
    if faults:
        return
    try:
        conditions = read_conditions(config)
    except ConditionError as error:
        yield error.fault
        return
    yield from _check_connections(config, conditions)


def _check_steps(config: ModelConfig) -> Iterator[Fault]:
    name = config.name
    inputs = {tensor.name for tensor in config.input}
    written = set()
    for index, step in enumerate(config.ensemble_scheduling.step):
        path = f"{_BASE}.step[{index}]"
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield Fault(path, f"must specify '{field}' in step {index} of ensemble '{name}'")
        for key, tensor in step.output_map.items():
            if tensor in written:
                yield Fault(
                    f'{path}.output_map["{key}"]',
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' "
                    f"step {index}",
                )
            written.add(tensor)
            if tensor in inputs:
                yield Fault(
                    f'{path}.output_map["{key}"]',
                    f"ensemble tensor '{tensor}' is an input of ensemble '{name}' and can not appear in an output map, "
                    f"as in step {index}",
                )


def _check_connections(config: ModelConfig, conditions: Conditions) -> Iterator[Fault]:
    """Every tensor must be written and read; what is never written starves the steps behind it."""
    name = config.name
    steps = config.ensemble_scheduling.step
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    awaited = [
        {*step.input_map.values(), *conditions.guards(step.output_map, index)} for index, step in enumerate(steps)
    ]
    read = set().union(*awaited)
    written = {tensor for step in steps for tensor in step.output_map.values()}
    for index, tensor in enumerate(inputs):
        if tensor not in read:
            yield Fault(f"input[{index}]", f"ensemble input '{tensor}' for ensemble {name}' is not used")
    for index, tensor in enumerate(outputs):
        if tensor not in written and tensor not in inputs:
            yield Fault(f"output[{index}]", f"ensemble output '{tensor}' for ensemble {name}' is not used")
    available = _reachable(config, awaited)
    yield from _check_reached(config, awaited, available)
    for index, step in enumerate(steps):
        for key, tensor in step.output_map.items():
            in_circle = tensor not in available and awaited[index] <= written.union(inputs)
            if tensor not in outputs and (tensor not in read or in_circle):
                path = f'{_BASE}.step[{index}].output_map["{key}"]'
                yield Fault(path, f"ensemble tensor '{tensor}' is unused in ensemble '{name}'")
        for key, tensor in step.input_map.items():
            if tensor not in written and tensor not in inputs:
                path = f'{_BASE}.step[{index}].input_map["{key}"]'
                yield Fault(path, f"ensemble tensor '{tensor}' is not written in ensemble '{name}'")


def _check_reached(config: ModelConfig, awaited: Sequence[set[str]], available: set[str]) -> Iterator[Fault]:
    """Every output that a step writes must be among the tensors that get written."""
    steps = config.ensemble_scheduling.step
    for index, output in enumerate(config.output):
        producer = next((at for at, step in enumerate(steps) if output.name in step.output_map.values()), None)
        if output.name in available or producer is None:
            continue
        starving = sorted(awaited[producer] - available)
        yield Fault(
            f"output[{index}]",
            f"output '{output.name}' for ensemble '{config.name}' is not written: at least one of its depending "
            f"tensors, '{starving[0]}', is not connected",
        )


def _reachable(config: ModelConfig, awaited: Sequence[set[str]]) -> set[str]:
    """Return the tensors that get written when every step runs as soon as what it awaits is there."""
    available = {tensor.name for tensor in config.input}
    waiting = list(zip(config.ensemble_scheduling.step, awaited, strict=True))
    while waiting:
        ready = [each for each in waiting if available.issuperset(each[1])]
        if not ready:
            break
        for each in ready:
            available.update(each[0].output_map.values())
            waiting.remove(each)
    return available
