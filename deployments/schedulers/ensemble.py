"""The ensemble scheduler: a request flows through the steps, each of which starts when its tensors are there."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.router import Router
from deployments.core.statistics import OTHER, ModelStatistics
from deployments.schedulers.branching_ensemble import BranchingEnsembleScheduler
from deployments.schedulers.ensemble_plan import EnsemblePlan, Plan, Step
from deployments.schedulers.ensemble_step import (
    follow_sequence,
    sequence_parameters,
    step_error,
    step_inputs,
    step_request,
)
from deployments.schedulers.scheduler import STOPPING, reply
from deployments.schedulers.step_limit import limited, withdraw_waiting
from protocol.errors import Cancelled, ServingError, Unavailable
from protocol.infer import Array, InferRequest, InferResponse, read_only
from protocol.normalise import request_prefix
from protocol.signature import Signature


class _Run:
    """One request on its way: the tensors that exist, and how many each step still waits for."""

    __slots__ = ("answered", "children", "flags", "in_flight", "missing", "plan", "request", "sequence_id", "tensors")

    def __init__(self, request: InferRequest, plan: Plan, tensor_count: int) -> None:
        self.request = request
        self.plan = plan
        self.tensors: list[Array | None] = [None] * tensor_count
        self.missing = list(plan.missing)
        self.children: list[InferRequest] = []
        self.in_flight = 0
        self.answered = False
        self.sequence_id = request.sequence_id
        self.flags = request.flags


def ensemble_scheduler(
    config: ModelConfig,
    step_signatures: Mapping[str, Signature],
    router: Router,
    statistics: ModelStatistics,
    clock: Clock,
) -> "EnsembleScheduler | BranchingEnsembleScheduler":
    """Return the scheduler of an ensemble.

    Raises:
        ModelLoadError: it does not fit its models.
    """
    plans = EnsemblePlan(config, step_signatures)
    branches = bool(plans.streamed or plans.conditions.when) or config.model_transaction_policy.decoupled
    kind = BranchingEnsembleScheduler if branches else EnsembleScheduler
    return kind(config, plans, router, statistics, clock)


class EnsembleScheduler:
    """Runs an ensemble's steps over a router; independent steps run at the same time, unneeded ones not at all.

    Every step runs once and answers once; `BranchingEnsembleScheduler` is for others. The first error of a step is the
    ensemble's answer; steps that are on their way then finish unheard. Statistics are the ensemble's own: what its
    steps compute is not known here when they run elsewhere, so all time from arrival to answer counts as
    `compute_infer`, and an ensemble's failures are all of reason OTHER.
    """

    oldest_queued_ns = 0  # requests wait in the queues of the steps

    def __init__(
        self,
        config: ModelConfig,
        plans: EnsemblePlan,
        router: Router,
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        self._ensemble = plans
        self._name = config.name
        limit = config.ensemble_scheduling.max_inflight_requests
        self._sends, self._cancel = limited(limit, router, plans.steps, clock)
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self._call_soon = clock.call_soon
        self._running: dict[InferRequest, _Run] = {}
        self._drained: Callable[[], None] | None = None

    @property
    def running(self) -> Collection[InferRequest]:
        """The requests that steps are on their way for."""
        return self._running.keys()

    def submit(self, request: InferRequest) -> None:
        """Start every step that needs only the request's inputs."""
        now_ns = self._now_ns()
        request.queued_ns = now_ns
        if not request.received_ns:
            request.received_ns = now_ns
        if self._drained is not None:
            self._call_soon(partial(reply, request, Unavailable(request_prefix(request.id) + STOPPING)))
            return
        plan = self._ensemble.plan(request.outputs)
        run = self._running[request] = _Run(request, plan, self._ensemble.tensor_count)
        inputs = request.inputs
        self._arrived(run, [(tensor, inputs.get(name)) for name, tensor in plan.inputs])
        if not run.in_flight and not run.answered:
            self._call_soon(partial(self._finish, run))  # what was asked for are inputs

    def cancel(self, request: InferRequest) -> None:
        """Give up the request and its steps; no new ones start."""
        request.cancelled = True
        run = self._running.get(request)
        if run is not None:
            for child in run.children:
                self._cancel(child)

    def drain(self, drained: Callable[[], None]) -> None:
        """Refuse new requests, and call `drained` in a later turn, once no step is on its way."""
        self._drained = drained
        if not self._running:
            self._call_soon(drained)

    def abandon(self) -> None:
        """Fail all requests as a stopping server does, and give up their steps."""
        for run in list(self._running.values()):
            if not run.answered:
                children = tuple(run.children)
                self._fail(run, Unavailable(request_prefix(run.request.id) + STOPPING))
                for child in children:
                    self._cancel(child)

    def _arrived(self, run: _Run, arrived: list[tuple[int, Array | None]]) -> None:
        """Take tensors in, None for those that will not come, and start the steps that were waiting for them."""
        consumers = run.plan.consumers
        missing = run.missing
        tensors = run.tensors
        shared = run.plan.shared
        for tensor, array in arrived:
            if tensor in shared and array is not None:
                array = read_only(array)
            tensors[tensor] = array
            for step in consumers[tensor]:
                missing[step.index] -= 1
                if not missing[step.index] and not run.answered:
                    self._start(run, step)

    def _start(self, run: _Run, step: Step) -> None:
        request = run.request
        if request.cancelled:
            return self._fail(run, Cancelled(""))
        try:
            inputs, rows = step_inputs(run.tensors, step, request.id)
        except ServingError as error:
            return self._fail(run, step_error(self._name, step, error))
        heard = partial(self._step_replied, run, step)
        child = step_request(run, step, inputs, rows, run.plan.step_outputs[step.index], heard)
        run.in_flight += 1
        run.children.append(child)
        self._sends[step.index](child)

    def _step_replied(self, run: _Run, step: Step, child: InferRequest, result: InferResponse | ServingError) -> None:
        run.in_flight -= 1
        if run.answered:
            if not run.in_flight:
                self._forget(run)
        elif isinstance(result, ServingError):
            self._fail(run, Cancelled("") if run.request.cancelled else step_error(self._name, step, result))
        else:
            if result.parameters:
                follow_sequence(run, result.parameters)
            outputs = result.outputs
            self._arrived(run, [(tensor, outputs.get(name)) for name, tensor in step.outputs])
            if not run.in_flight and not run.answered:
                self._finish(run)

    def _finish(self, run: _Run) -> None:
        request = run.request
        outputs = {}
        for edge in run.plan.outputs:
            array = run.tensors[edge.tensor]
            if array is not None:  # else its step did not give it
                outputs[edge.name] = edge.leave(array) if edge.converts or edge.spec.reshaped else array
        run.answered = True
        batch = Batch([request], request.rows)
        batch.results = [InferResponse(outputs, sequence_parameters(run))]
        batch.start_ns = batch.infer_start_ns = request.queued_ns
        batch.infer_end_ns = batch.end_ns = self._now_ns()
        self._statistics.record_batch(batch)
        self._forget(run)
        reply(request, batch.results[0])

    def _fail(self, run: _Run, error: ServingError) -> None:
        """Answer with an error in the next turn: the request may only just be on its way in."""
        run.answered = True
        self._statistics.record_failure(OTHER, self._now_ns() - run.request.received_ns)
        self._call_soon(partial(reply, run.request, error))
        withdraw_waiting(run.children)
        if not run.in_flight:
            self._forget(run)

    def _forget(self, run: _Run) -> None:
        self._running.pop(run.request, None)
        run.children.clear()  # they point back here
        if self._drained is not None and not self._running:
            self._call_soon(self._drained)
