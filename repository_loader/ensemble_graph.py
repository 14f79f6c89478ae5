"""Ensembles checked against the models they are made of.

Source: core's EnsembleScheduler validation (ValidateEnsembleConfig, ValidateTensorConsistency) and the dependency graph
of its model repository manager, whose texts these are.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

from protocol.normalise import dims_text
from repository_loader.ensemble_conditions import DEFAULT, check_condition_types, read_conditions
from repository_loader.findings import Fault
from repository_loader.model_files import is_ensemble
from repository_loader.snapshot import RepositoryModel
from repository_loader.tensor_validation import dims_agree
from repository_loader.validation import check_cache

_BASE = "ensemble_scheduling"


@dataclass(frozen=True, slots=True)
class EnsembleVerdict:
    """What the graph says about one ensemble; it cannot be loaded when there are `faults`.

    `faults` and `warnings` are in order; `config` is its configuration with versions settled.
    """

    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class _Node:
    model: str
    data_type: int
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]


def step_models(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the models of an ensemble's steps, each once, in step order."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def steps_of(model: RepositoryModel | None) -> tuple[str, ...]:
    """Return as `step_models`; none where there is no model, or its configuration could not be read."""
    return step_models(model.config) if model is not None and model.config is not None else ()


def steps_first(names: Iterable[str], steps: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the names in order, but each behind its steps; `steps` returns those that are among the names.

    The members of a cycle come in any order.
    """
    ordered: dict[str, None] = {}
    for root in sorted(names):
        stack = [root]
        opened: set[str] = set()
        while stack:
            opened.add(stack[-1])
            waiting = [step for step in steps(stack[-1]) if step not in ordered and step not in opened]
            if waiting:
                stack.extend(waiting)
            else:
                ordered.setdefault(stack.pop(), None)
    return list(ordered)


def without_step(ensemble: str, step: str, reason: str) -> str:
    """Return why an ensemble is not loaded of which a model is not."""
    return (
        f"ensemble '{ensemble}' depends on '{step}' which has no loaded version. "
        f"Model '{step}' loading failed with error: {reason}"
    )


def linked(*models: Mapping[str, RepositoryModel], within: Collection[str] | None = None) -> list[set[str]]:
    """Return the names of models and of ensembles' steps, in one set those that ensembles link in any mapping.

    Only those `within`, if that is given, count, and link others.
    """
    groups: dict[str, set[str]] = {}
    for name, model in chain.from_iterable(each.items() for each in models):
        names = {name, *steps_of(model)}
        names = names if within is None else names.intersection(within)
        group = names.union(*(groups[each] for each in names if each in groups))
        groups.update(dict.fromkeys(group, group))
    return list({id(group): group for group in groups.values()}.values())


def check_ensembles(models: Mapping[str, RepositoryModel]) -> dict[str, EnsembleVerdict]:
    """Judge every ensemble that stands on its own so far; the models of steps are looked up in `models`."""
    return _Graph(models).verdicts()


class _Graph:
    def __init__(self, models: Mapping[str, RepositoryModel]) -> None:
        self._models = models
        self._ensembles = {
            name: model.packages[-1].config
            for name, model in models.items()
            if model.failure is None and model.packages and is_ensemble(model.packages[-1].config)
        }
        self._verdicts: dict[str, EnsembleVerdict] = {}

    def verdicts(self) -> dict[str, EnsembleVerdict]:
        for cycle in self._cycles():
            text = "circular dependency between ensembles: " + " -> ".join((*cycle, cycle[0]))
            for name in cycle:
                self._verdicts.setdefault(name, EnsembleVerdict((Fault(_BASE, text),), (), self._ensembles[name]))
        for name in steps_first(self._ensembles, self._nested):
            if name not in self._verdicts:
                self._verdicts[name] = self._judge(name)
        return self._verdicts

    def _nested(self, name: str) -> list[str]:
        return [other for other in step_models(self._ensembles[name]) if other in self._ensembles]

    def _cycles(self) -> Iterator[list[str]]:
        """Yield each cycle once, found by walking from every ensemble; iterative, as chains may be long."""
        done: set[str] = set()
        for root in sorted(self._ensembles):
            path: list[str] = []
            stack = [(root, iter(self._nested(root)))] if root not in done else []
            path.extend(name for name, _ in stack)
            while stack:
                following = next(stack[-1][1], None)
                if following is None:
                    done.add(stack.pop()[0])
                    path.pop()
                elif following in path:
                    yield path[path.index(following) :]
                elif following not in done:
                    stack.append((following, iter(self._nested(following))))
                    path.append(following)

    def _failure(self, name: str) -> str | None:
        verdict = self._verdicts.get(name)
        return verdict.faults[0].message if verdict and verdict.faults else self._models[name].failure

    def _judge(self, name: str) -> EnsembleVerdict:
        config = ModelConfig.FromString(self._ensembles[name].SerializeToString())
        missing = [other for other in step_models(config) if other not in self._models]
        if missing:
            text = f"ensemble {name} contains models that are not available or ambiguous: {', '.join(missing)}"
            first = next(i for i, step in enumerate(config.ensemble_scheduling.step) if step.model_name in missing)
            return EnsembleVerdict((Fault(f"{_BASE}.step[{first}].model_name", text),), (), config)
        warnings: list[Fault] = []
        faults: list[Fault] = []
        steps: list[ModelConfig] = []
        for index, step in enumerate(config.ensemble_scheduling.step):
            path = f"{_BASE}.step[{index}]"
            model = self._models[step.model_name]
            failure = self._failure(step.model_name)
            if failure is not None:
                faults.append(Fault(f"{path}.model_name", without_step(name, model.name, failure)))
                continue
            if step.model_version == 0 and model.package(0) is None:
                step.model_version = -1
                warnings.append(Fault(path, f"step {index} of ensemble '{name}' has no model_version; -1 is assumed"))
            if model.package(step.model_version) is None:
                text = (
                    f"ensemble '{name}' depends on '{model.name}' whose required version {step.model_version} "
                    "is not loaded."
                )
                faults.append(Fault(f"{path}.model_version", text))
                continue
            nested = self._verdicts.get(step.model_name)
            # Whichever version a step names, its model is asked as the highest is, in Triton too.
            steps.append(nested.config if nested else model.packages[-1].config)
        if not faults:
            faults.extend(_check_edges(config, steps))
        if not faults:
            faults.extend(_check_conditions(config, steps))
            faults.extend(_check_decoupled(config, steps))
        return EnsembleVerdict(tuple(faults), tuple(warnings), config)


def _node(config: ModelConfig, data_type: int, dims: Sequence[int]) -> _Node:
    batch = (-1,) if config.max_batch_size > 0 else ()
    return _Node(config.name, data_type, tuple(dims), (*batch, *dims))


def _own_node(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _Node:
    """Return a tensor of the ensemble's own as its steps see it: behind its `reshape`."""
    return _node(config, tensor.data_type, tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _check_edges(config: ModelConfig, steps: Sequence[ModelConfig]) -> Iterator[Fault]:
    """Check names, batch sizes, types and shapes where tensors enter and leave models."""
    name = config.name
    nodes: dict[str, _Node] = {}
    for tensor in (*config.input, *config.output):
        nodes.setdefault(tensor.name, _own_node(config, tensor))
    for index, (step, model) in enumerate(zip(config.ensemble_scheduling.step, steps, strict=True)):
        path = f"{_BASE}.step[{index}]"
        if 0 < model.max_batch_size < config.max_batch_size:
            yield Fault(
                "max_batch_size",
                f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{model.name} which only allows maximum batch size to be {model.max_batch_size}",
            )
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for key, mapped in sorted(step.input_map.items()):
            if key not in inputs:
                yield Fault(
                    f'{path}.input_map["{key}"]',
                    f"in ensemble {name}, ensemble tensor {mapped} is mapping to non-existing input {key} in model "
                    f"{model.name}",
                )
        for key, tensor in inputs.items():
            if key not in step.input_map and not tensor.optional:
                yield Fault(
                    f"{path}.input_map",
                    f"in ensemble {name}, input {key} in model {model.name} is not mapped to any ensemble tensors",
                )
        for key, mapped in sorted(step.output_map.items()):
            if key not in outputs:
                yield Fault(
                    f'{path}.output_map["{key}"]',
                    f"in ensemble {name}, ensemble tensor {mapped} is mapped from non-existing output {key} in model "
                    f"{model.name}",
                )
        for field, mapping, tensors in (
            ("input_map", step.input_map, inputs),
            ("output_map", step.output_map, outputs),
        ):
            for key, mapped in sorted(mapping.items()):
                if key in tensors:
                    tensor = tensors[key]
                    here = _node(model, tensor.data_type, tensor.dims)
                    text = _inconsistency(nodes.setdefault(mapped, here), here)
                    if text:
                        message = f"in ensemble {name}, ensemble tensor {mapped}: {text}"
                        yield Fault(f'{path}.{field}["{key}"]', message)


def _inconsistency(first: _Node, second: _Node) -> str | None:
    if first.data_type != second.data_type:
        return (
            f"inconsistent data type: {DataType.Name(first.data_type)} is inferred from model {first.model} while "
            f"{DataType.Name(second.data_type)} is inferred from model {second.model}"
        )
    if not dims_agree(first.dims, second.dims) and not dims_agree(first.full_dims, second.full_dims):
        return (
            f"inconsistent shape: {dims_text(first.full_dims)} is inferred from model {first.model} while "
            f"{dims_text(second.full_dims)} is inferred from model {second.model}"
        )
    return None


def _check_conditions(config: ModelConfig, steps: Sequence[ModelConfig]) -> Iterator[Fault]:
    """Check conditions and defaults against the types and shapes of their tensors."""
    nodes = {tensor.name: _own_node(config, tensor) for tensor in config.input}
    for step, model in zip(config.ensemble_scheduling.step, steps, strict=True):
        outputs = {tensor.name: tensor for tensor in model.output}
        nodes.update(
            (mapped, _node(model, outputs[key].data_type, outputs[key].dims)) for key, mapped in step.output_map.items()
        )
    yield from check_condition_types(config, {name: node.data_type for name, node in nodes.items()})
    for name, default in read_conditions(config).defaults.items():
        text = _inconsistency(nodes[name], nodes[default.tensor]) if default.tensor else None
        if text:
            yield Fault(f'parameters["{DEFAULT}{name}"]', f"in ensemble {config.name}, ensemble tensor {name}: {text}")


def _check_decoupled(config: ModelConfig, steps: Sequence[ModelConfig]) -> Iterator[Fault]:
    """Check what decoupled steps may not do; an ensemble that has one is decoupled itself."""
    yield from _check_joined_responses(config, steps)
    config.model_transaction_policy.decoupled = any(step.model_transaction_policy.decoupled for step in steps)
    yield from check_cache(config)


def _check_joined_responses(config: ModelConfig, steps: Sequence[ModelConfig]) -> Iterator[Fault]:
    """Neither a step nor the ensemble's response may join the responses of two decoupled models.

    Nothing says which of them belong together, nor that there are as many of each.
    """
    origin: dict[str, frozenset[int]] = {tensor.name: frozenset() for tensor in config.input}
    conditions = read_conditions(config)
    waiting = [
        (index, step, model, {*step.input_map.values(), *conditions.guards(step.output_map, index)})
        for index, (step, model) in enumerate(zip(config.ensemble_scheduling.step, steps, strict=True))
    ]
    while waiting:
        ready = [item for item in waiting if origin.keys() >= item[3]]
        if not ready:
            return
        for item in ready:
            waiting.remove(item)
            index, step, model, awaited = item
            sources = frozenset().union(*(origin[tensor] for tensor in awaited))
            if len(sources) > 1:
                yield Fault(f"{_BASE}.step[{index}]", _joins(config, model))
            if len(sources) > 1 or model.model_transaction_policy.decoupled:
                sources = frozenset({index})
            origin.update((tensor, sources) for tensor in step.output_map.values())
    if len(frozenset().union(*(origin[tensor.name] for tensor in config.output))) > 1:
        yield Fault("output", _joins(config, config))


def _joins(config: ModelConfig, model: ModelConfig) -> str:
    return (
        f"in ensemble {config.name}, step of model '{model.name}' receives inputs originated from different "
        "decoupled models"
    )
