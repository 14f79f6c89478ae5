"""An ensemble's data flow, worked out once, when it is loaded."""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

from deployments.backends.backend import ModelLoadError
from protocol.datatypes import of_array
from protocol.errors import InvalidArgument
from protocol.infer import Array
from protocol.normalise import client_shape
from protocol.signature import Signature, TensorSpec
from repository_loader.ensemble_conditions import Condition, ConditionError, Conditions, Value, read_conditions

PLANS_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Edge:
    """An ensemble tensor on its way into a step, or out of the ensemble.

    `gains_batch` says that it comes without a batch dimension and goes where there is one, `loses_batch` the opposite;
    `batched` that there is one where it goes.
    """

    name: str
    tensor: int
    spec: TensorSpec
    gains_batch: bool
    loses_batch: bool
    batched: bool

    @property
    def converts(self) -> bool:
        """Whether the batch dimension is different at the two ends."""
        return self.gains_batch or self.loses_batch

    def takes(self, array: Array) -> bool:
        """Whether the tensor is what the configuration says that comes; a Python model may have made something else."""
        spec = self.spec
        shape = array.shape[1:] if self.batched else array.shape
        return array.dtype == spec.datatype.numpy and (shape == spec.dims or fits(shape, spec.dims))

    def convert(self, array: Array) -> Array:
        """Add or drop a batch dimension of 1 where the tensor needs it to fit its configured dims."""
        return self._converted(array, self.spec.dims)

    def leave(self, array: Array) -> Array:
        """Return an output of the ensemble as its client sees it: with its batch dimension, its `reshape` undone."""
        spec = self.spec
        if self.converts:
            array = self._converted(array, spec.model_dims)
        if spec.reshaped and fits(array.shape[1:] if self.batched else array.shape, spec.model_dims):
            return array.reshape(client_shape(spec, self.batched, array.shape))
        return array

    def _converted(self, array: Array, dims: tuple[int, ...]) -> Array:
        if self.gains_batch and fits(array.shape, dims):
            return np.expand_dims(array, 0)
        if self.loses_batch and array.shape[:1] == (1,) and not fits(array.shape, dims):
            return array.reshape(array.shape[1:])
        return array


@dataclass(frozen=True, slots=True)
class When:
    """A step's condition, on the tensor of that number."""

    tensor: int
    condition: Condition

    def holds(self, array: Array | None) -> bool:
        """Whether the step runs; a tensor that is not there fits no condition.

        Raises:
            InvalidArgument: a Python model has made something of another datatype, which cannot be compared.
        """
        if array is None:
            return False
        condition = self.condition
        value = condition.value.encode() if isinstance(condition.value, str) else condition.value
        try:
            found = _COMPARISONS[condition.comparison](array, value)
        except TypeError:
            raise InvalidArgument(f"a tensor of {of_array(array).name} cannot be compared with {value!r}") from None
        return bool(found.all() if condition.every else found.any())


_COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Fallback:
    """What an output of a step is when the step is skipped: another tensor, or `[rows, *dims]` of one value."""

    spec: TensorSpec
    batching: bool
    edge: Edge | None
    value: Value

    def filled(self, rows: int) -> Array:
        """Return the tensor of one value; sizes that the configuration leaves open are 1."""
        dims = tuple(1 if dim == -1 else dim for dim in self.spec.dims)
        value = self.value.encode() if isinstance(self.value, str) else self.value
        return np.full((rows, *dims) if self.batching else dims, value, self.spec.datatype.numpy)


@dataclass(frozen=True, slots=True)
class Step:
    """One model of an ensemble: what it takes and, as pairs of output name and ensemble tensor, what it gives.

    `checked` says that its inputs are sure to have the datatypes and dims that the model expects, so that only their
    batch sizes need a look. `awaited` are the tensors that must be there before it starts: its inputs, and those that
    say whether it runs (`when`) and what stands for its outputs (`fallbacks`, by tensor) otherwise.
    """

    index: int
    model_name: str
    version: int
    signature: Signature
    inputs: tuple[Edge, ...]
    outputs: tuple[tuple[str, int], ...]
    checked: bool
    awaited: frozenset[int]
    when: When | None
    fallbacks: dict[int, Fallback]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that one choice of outputs needs.

    `inputs` are the ensemble's, with their tensors. `shared` are the tensors that go to several places, none of which
    may write to them. `missing` says for each step how many tensors it waits for (0 for those that are left out),
    `consumers` which steps wait for a tensor, `step_outputs` which outputs a step is asked for.
    """

    outputs: tuple[Edge, ...]
    inputs: tuple[tuple[str, int], ...]
    shared: frozenset[int]
    missing: tuple[int, ...]
    consumers: tuple[tuple[Step, ...], ...]
    step_outputs: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What an ensemble tensor looks like where it comes from."""

    dims: tuple[int, ...]
    batching: bool


class EnsemblePlan:
    """All steps of an ensemble, and a plan for each choice of outputs that has been asked for.

    The configuration has been validated against those of its models: tensors exist, connect, and agree in datatype.
    """

    def __init__(self, config: ModelConfig, step_signatures: Mapping[str, Signature]) -> None:
        """Work out the steps.

        Raises:
            ModelLoadError: a model is missing, or an output of one, or a condition cannot be read.
        """
        self._signature = Signature.from_config(config)
        steps = config.ensemble_scheduling.step
        _check_models(config.name, steps, step_signatures)
        try:
            self.conditions = read_conditions(config)
        except ConditionError as error:
            raise ModelLoadError(error.message) from error
        sources = _sources(self._signature, steps, step_signatures)
        self._tensors = {name: index for index, name in enumerate(sources)}
        self.tensor_count = len(sources)
        try:
            self.steps = tuple(
                _step(index, step, step_signatures[step.model_name], sources, self._tensors, self.conditions)
                for index, step in enumerate(steps)
            )
            self.streamed = _streamed(self.steps)
            self._outputs = tuple(
                _edge(name, spec, self._signature.max_batch_size > 0, name, sources, self._tensors)
                for name, spec in self._signature.outputs.items()
            )
        except KeyError as error:
            raise ModelLoadError(f"in ensemble {config.name}, tensor {error.args[0]} does not exist") from error
        self._plans: dict[tuple[str, ...] | None, Plan] = {}

    def plan(self, requested: tuple[str, ...] | None) -> Plan:
        """Return the plan for the requested outputs, None for all; plans are kept for the next request."""
        plan = self._plans.get(requested)
        if plan is None:
            if len(self._plans) >= PLANS_KEPT:
                self._plans.clear()
            plan = self._plans[requested] = self._make_plan(requested)
        return plan

    def _make_plan(self, requested: tuple[str, ...] | None) -> Plan:
        steps = self.steps
        outputs = tuple(edge for edge in self._outputs if requested is None or edge.name in requested)
        needed, wanted = self._needed({edge.tensor for edge in outputs})
        waits = [step.awaited if step.index in needed else frozenset() for step in steps]
        return Plan(
            outputs,
            tuple((name, self._tensors[name]) for name in self._signature.inputs),
            self._shared(outputs, [steps[index] for index in needed]),
            tuple(len(tensors) for tensors in waits),
            tuple(tuple(step for step in steps if tensor in waits[step.index]) for tensor in range(self.tensor_count)),
            tuple(tuple(name for name, tensor in step.outputs if tensor in wanted) for step in steps),
        )

    def _needed(self, asked: set[int]) -> tuple[set[int], set[int]]:
        """Return the steps that must run for some tensors, and these tensors with all that the steps await."""
        producers = {tensor: step for step in self.steps for _, tensor in step.outputs}
        needed: set[int] = set()
        wanted = set(asked)
        front = list(asked)
        while front:
            step = producers.get(front.pop())
            if step is not None and step.index not in needed:
                needed.add(step.index)
                fresh = step.awaited - wanted
                wanted |= fresh
                front.extend(fresh)
        return needed, wanted

    def _shared(self, outputs: Sequence[Edge], steps: Sequence[Step]) -> frozenset[int]:
        """Return the tensors that more than one of the steps and the response may have in use at the same time."""
        uses = Counter(edge.tensor for edge in outputs)
        for step in steps:
            inputs = [edge.tensor for edge in step.inputs]
            uses.update(inputs)
            # What is looked at, or stands for others, may be in use elsewhere at that time.
            uses.update(2 * list(step.awaited.difference(inputs)))
            uses.update(each.edge.tensor for each in step.fallbacks.values() if each.edge is not None)
            if not self.streamed.isdisjoint(step.awaited):
                uses.update(2 * [tensor for tensor in inputs if tensor not in self.streamed])
        return frozenset(tensor for tensor, count in uses.items() if count > 1)


def fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape is what the dims describe."""
    if len(shape) != len(dims):
        return False
    for size, dim in zip(shape, dims, strict=True):  # noqa: SIM110, a generator takes four times as long
        if dim != -1 and dim != size:
            return False
    return True


def _check_models(name: str, steps: Sequence[ModelEnsembling.Step], step_signatures: Mapping[str, Signature]) -> None:
    unknown = sorted({step.model_name for step in steps} - set(step_signatures))
    if unknown:
        raise ModelLoadError(
            f"ensemble {name} contains models that are not available or ambiguous: {', '.join(unknown)}"
        )
    for step in steps:
        for output in step.output_map.keys() - step_signatures[step.model_name].outputs.keys():
            raise ModelLoadError(f"in ensemble {name}, model {step.model_name} has no output '{output}'")


def _sources(
    ensemble: Signature, steps: Sequence[ModelEnsembling.Step], step_signatures: Mapping[str, Signature]
) -> dict[str, _Source]:
    batching = ensemble.max_batch_size > 0
    sources = {name: _Source(spec.model_dims, batching) for name, spec in ensemble.inputs.items()}
    for step in steps:
        model = step_signatures[step.model_name]
        for output, tensor in step.output_map.items():
            sources[tensor] = _Source(model.outputs[output].dims, model.max_batch_size > 0)
    return sources


def _step(
    index: int,
    step: ModelEnsembling.Step,
    model: Signature,
    sources: Mapping[str, _Source],
    tensors: Mapping[str, int],
    conditions: Conditions,
) -> Step:
    batching = model.max_batch_size > 0
    when = conditions.when.get(index)
    fallbacks = {}
    for output, tensor in step.output_map.items():
        default = conditions.defaults.get(tensor)
        if default is not None:
            spec = model.outputs[output]
            other = _edge(tensor, spec, batching, default.tensor, sources, tensors) if default.tensor else None
            fallbacks[tensors[tensor]] = Fallback(spec, batching, other, default.value)
    edges = tuple(
        _edge(name, model.inputs[name], batching, tensor, sources, tensors) for name, tensor in step.input_map.items()
    )
    return Step(
        index,
        step.model_name,
        step.model_version,
        model,
        edges,
        tuple((output, tensors[step.output_map[output]]) for output in model.outputs if output in step.output_map),
        all(
            not edge.converts and not edge.spec.reshaped and fits(sources[tensor].dims, edge.spec.dims)
            for edge, tensor in zip(edges, step.input_map.values(), strict=True)
        ),
        frozenset(tensors[name] for name in (*step.input_map.values(), *conditions.guards(step.output_map, index))),
        None if when is None else When(tensors[when.tensor], when),
        fallbacks,
    )


def _streamed(steps: Sequence[Step]) -> frozenset[int]:
    """Return the tensors of which there is one for each response of a decoupled step, made by it or out of it."""
    streamed: set[int] = set()
    for _ in steps:  # as many rounds as the longest chain may need
        for step in steps:
            if step.signature.decoupled or not streamed.isdisjoint(step.awaited):
                streamed.update(tensor for _, tensor in step.outputs)
    return frozenset(streamed)


def _edge(
    name: str,
    spec: TensorSpec,
    batching: bool,
    tensor: str,
    sources: Mapping[str, _Source],
    tensors: Mapping[str, int],
) -> Edge:
    source = sources[tensor]
    gains, loses = batching and not source.batching, source.batching and not batching
    return Edge(name, tensors[tensor], spec, gains, loses, batching)
