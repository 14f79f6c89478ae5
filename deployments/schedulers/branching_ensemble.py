"""Ensembles whose steps need not run exactly once: a decoupled step answers many times, a condition skips a step."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.router import Router
from deployments.core.statistics import OTHER, ModelStatistics
from deployments.schedulers.ensemble_plan import PLANS_KEPT, EnsemblePlan, Plan, Step
from deployments.schedulers.ensemble_step import (
    follow_sequence,
    sequence_parameters,
    step_error,
    step_inputs,
    step_request,
)
from deployments.schedulers.scheduler import STOPPING, reply
from deployments.schedulers.step_limit import limited
from protocol.errors import Cancelled, Internal, ServingError, Unavailable
from protocol.infer import Array, InferRequest, InferResponse, StreamedResponse, read_only
from protocol.normalise import request_prefix

Iteration = int
Arrived = Iterable[tuple[int, Array | None]]


class _Reader:
    """A step, or (None) the ensemble's response: it starts when the tensors are there that it awaits.

    `streamed` of these come once for each response of a decoupled step, `constant` once for the request.
    """

    __slots__ = ("constant", "index", "step", "streamed")

    def __init__(self, index: int, step: Step | None, awaited: frozenset[int], streamed: frozenset[int]) -> None:
        self.index = index
        self.step = step
        self.streamed = awaited & streamed
        self.constant = awaited - streamed


class _Readers:
    """Who reads the tensors of one plan: by tensor, and all."""

    __slots__ = ("all", "of")

    def __init__(self, plan: Plan, steps: tuple[Step, ...], streamed: frozenset[int]) -> None:
        needed = {step.index for consumers in plan.consumers for step in consumers}
        self.all = [_Reader(step.index, step, step.awaited, streamed) for step in steps if step.index in needed]
        answer = _Reader(len(steps), None, frozenset(edge.tensor for edge in plan.outputs), streamed)
        self.all.append(answer)
        self.of = [
            [reader for reader in self.all if tensor in reader.streamed or tensor in reader.constant]
            for tensor in range(len(plan.consumers))
        ]


class _Run:
    """One request on its way.

    `tensors` are by number and iteration, which is the place of the response that they stem from in those of the last
    decoupled step before them, 0 without one. `missing` counts what a reader still waits for in an iteration, and under
    None of what comes once; `parked` are iterations that wait for that. `skipped` are tensors whose step was.
    """

    __slots__ = (
        "answered",
        "children",
        "counts",
        "flags",
        "in_flight",
        "missing",
        "parked",
        "plan",
        "readers",
        "request",
        "responses",
        "sequence_id",
        "skipped",
        "tensors",
        "unread",
    )

    def __init__(self, request: InferRequest, plan: Plan, readers: _Readers) -> None:
        self.request = request
        self.plan = plan
        self.readers = readers
        self.tensors: dict[tuple[int, Iteration], Array | None] = {}
        self.unread: dict[tuple[int, Iteration], int] = {}
        self.skipped: set[tuple[int, Iteration]] = set()
        self.missing: dict[tuple[int, Iteration | None], int] = {
            (reader.index, None): len(reader.constant) for reader in readers.all
        }
        self.parked: dict[int, list[Iteration]] = {}
        self.counts: dict[int, int] = {}
        self.children: set[InferRequest] = set()
        self.responses: list[InferResponse] = []
        self.in_flight = 0
        self.answered = False
        self.sequence_id = request.sequence_id
        self.flags = request.flags


class BranchingEnsembleScheduler:
    """Runs an ensemble's steps over a router, each as often as its tensors come and only when its condition holds.

    Each response of a decoupled step starts the steps after it, as in Triton; tensors that do not stem from the
    decoupled step go with each of its responses. Tensors of different decoupled steps never meet: an ensemble in which
    they would is not loaded. One without a decoupled step answers once.

    A step whose condition does not hold is skipped, and so is one that requires a tensor of a skipped step; what they
    would have made has its default, or is not there. Errors and statistics are as `EnsembleScheduler` has them, but an
    error also gives up the steps that are on their way.
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
        self._decoupled = config.model_transaction_policy.decoupled
        limit = config.ensemble_scheduling.max_inflight_requests
        self._sends, self._cancel = limited(limit, router, plans.steps, clock)
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self._call_soon = clock.call_soon
        self._readers: dict[tuple[str, ...] | None, _Readers] = {}
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
        request.started_ns = now_ns
        plan = self._ensemble.plan(request.outputs)
        readers = self._readers.get(request.outputs)
        if readers is None:
            if len(self._readers) >= PLANS_KEPT:
                self._readers.clear()
            readers = _Readers(plan, self._ensemble.steps, self._ensemble.streamed)
            self._readers[request.outputs] = readers
        run = self._running[request] = _Run(request, plan, readers)
        inputs = request.inputs
        self._arrived(run, 0, [(tensor, inputs.get(name)) for name, tensor in plan.inputs])
        self._answer(run)

    def cancel(self, request: InferRequest) -> None:
        """Give up the request and its steps; no new ones start."""
        request.cancelled = True
        run = self._running.get(request)
        if run is not None:
            for child in tuple(run.children):
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
                self._fail(run, Unavailable(request_prefix(run.request.id) + STOPPING))

    def _arrived(self, run: _Run, iteration: Iteration, arrived: Arrived) -> None:
        """Take tensors in, None for those that will not come, and start what was waiting for them.

        So arrives what steps would have made that are skipped, one after the other: there may be hundreds in a row.
        """
        waiting = deque([(iteration, arrived)])
        while waiting:
            for reader, each in self._ready(run, *waiting.popleft()):
                if not run.answered and (made := self._start(run, reader, each)) is not None:
                    waiting.append(made)

    def _ready(self, run: _Run, iteration: Iteration, arrived: Arrived) -> list[tuple[_Reader, Iteration]]:
        """Take tensors in, and return who has waited for nothing else, in which iterations."""
        ready: list[tuple[_Reader, Iteration]] = []
        shared, streamed, missing = run.plan.shared, self._ensemble.streamed, run.missing
        for tensor, array in arrived:
            readers = run.readers.of[tensor]
            if not readers:
                continue
            run.tensors[tensor, iteration] = read_only(array) if tensor in shared and array is not None else array
            if tensor in streamed:
                run.unread[tensor, iteration] = len(readers)
            for reader in readers:
                key = (reader.index, iteration if tensor in streamed else None)
                left = missing.get(key, len(reader.streamed)) - 1
                if left:
                    missing[key] = left
                elif tensor not in streamed:
                    missing[key] = 0
                    iterations = run.parked.pop(reader.index, []) if reader.streamed else [0]
                    ready += [(reader, each) for each in iterations]
                else:
                    missing.pop(key, None)
                    if missing[reader.index, None]:
                        run.parked.setdefault(reader.index, []).append(iteration)
                    else:
                        ready.append((reader, iteration))
        return ready

    def _start(self, run: _Run, reader: _Reader, iteration: Iteration) -> tuple[Iteration, Arrived] | None:
        """Send a step, or the response; returns what is there instead of a step's outputs when it is skipped."""
        tensors = {tensor: run.tensors[tensor, 0] for tensor in reader.constant}
        skipped = {tensor for tensor in reader.constant if (tensor, 0) in run.skipped}
        for tensor in reader.streamed:
            key = (tensor, iteration)
            tensors[tensor] = run.tensors[key]
            if key in run.skipped:
                skipped.add(tensor)
            run.unread[key] -= 1
            if not run.unread[key]:
                del run.unread[key], run.tensors[key]
                run.skipped.discard(key)
        if reader.step is None:
            self._respond(run, tensors)
        elif run.request.cancelled:
            self._fail(run, Cancelled(""))
        else:
            try:
                if _is_skipped(reader.step, tensors, skipped):
                    return self._skip(run, reader.step, iteration, tensors)
                self._send(run, reader.step, iteration, tensors)
            except ServingError as error:
                self._fail(run, step_error(self._name, reader.step, error))
        return None

    def _send(self, run: _Run, step: Step, iteration: Iteration, tensors: dict[int, Array | None]) -> None:
        request = run.request
        inputs, rows = step_inputs(tensors, step, request.id)
        heard = partial(self._step_replied, run, step, iteration)
        child = step_request(run, step, inputs, rows, run.plan.step_outputs[step.index], heard)
        run.in_flight += 1
        run.children.add(child)
        self._sends[step.index](child)

    def _skip(
        self, run: _Run, step: Step, iteration: Iteration, tensors: dict[int, Array | None]
    ) -> tuple[Iteration, Arrived]:
        """Return what stands for a step's outputs."""
        if step.signature.decoupled:
            iteration = self._next(run, step)
        arrived: list[tuple[int, Array | None]] = []
        rows = run.request.rows
        for _, tensor in step.outputs:
            fallback = step.fallbacks.get(tensor)
            array = None
            if fallback is not None and fallback.edge is None:
                array = fallback.filled(rows)
            elif fallback is not None and fallback.edge is not None:
                array = tensors[fallback.edge.tensor]
                array = None if array is None else fallback.edge.convert(array)
            if array is None and run.readers.of[tensor]:
                run.skipped.add((tensor, iteration))
            arrived.append((tensor, array))
        return iteration, arrived

    def _next(self, run: _Run, step: Step) -> Iteration:
        iteration = run.counts.get(step.index, 0)
        run.counts[step.index] = iteration + 1
        return iteration

    def _step_replied(
        self, run: _Run, step: Step, iteration: Iteration, child: InferRequest, result: InferResponse | ServingError
    ) -> None:
        if isinstance(result, ServingError) or result.final:
            run.in_flight -= 1
            run.children.discard(child)
        if run.answered:
            if not run.in_flight:
                self._forget(run)
        elif run.request.cancelled:
            self._fail(run, Cancelled(""))
        elif isinstance(result, ServingError):
            self._fail(run, step_error(self._name, step, result))
        else:
            if result.parameters:
                follow_sequence(run, result.parameters)
            outputs = result.outputs
            if not step.signature.decoupled:
                self._arrived(run, iteration, [(tensor, outputs.get(name)) for name, tensor in step.outputs])
            elif outputs or not result.final:  # else it only says that no more will come
                iteration = self._next(run, step)
                self._arrived(run, iteration, [(tensor, outputs.get(name)) for name, tensor in step.outputs])
            self._answer(run)

    def _respond(self, run: _Run, tensors: dict[int, Array | None]) -> None:
        outputs: dict[str, Array] = {}
        for edge in run.plan.outputs:
            array = tensors[edge.tensor]
            if array is not None:
                outputs[edge.name] = edge.leave(array) if edge.converts or edge.spec.reshaped else array
        run.responses.append(StreamedResponse(outputs, sequence_parameters(run), False, 0))

    def _answer(self, run: _Run) -> None:
        """Send the responses that are ready; the last of all ends the request."""
        if run.answered:
            return
        request = run.request
        ended = not run.in_flight
        if ended and not run.responses and self._decoupled:
            run.responses.append(StreamedResponse({}, None, True, 0))
        elif ended and not run.responses:
            where = f"in ensemble '{self._name}', {request_prefix(request.id)}"
            return self._fail(run, Internal(f"{where}no output is set and no more steps can be made"))
        if ended:
            run.responses[-1].final = True
            self._succeeded(run)
        for response in run.responses:
            self._call_soon(partial(reply, request, response))
        run.responses.clear()
        if ended:
            self._forget(run)

    def _succeeded(self, run: _Run) -> None:
        run.answered = True
        request = run.request
        batch = Batch([request], request.rows)
        batch.start_ns = batch.infer_start_ns = request.queued_ns
        batch.infer_end_ns = batch.end_ns = self._now_ns()
        if self._decoupled:
            batch.answered = True
        else:
            batch.results = [run.responses[-1]]
        self._statistics.record_batch(batch)

    def _fail(self, run: _Run, error: ServingError) -> None:
        """Answer with an error in the next turn: the request may only just be on its way in."""
        run.answered = True
        run.request.started_ns = 0  # the failure is counted here
        self._statistics.record_failure(OTHER, self._now_ns() - run.request.received_ns)
        for response in run.responses:
            self._call_soon(partial(reply, run.request, response))
        self._call_soon(partial(reply, run.request, error))
        for child in tuple(run.children):
            self._cancel(child)
        if not run.in_flight:
            self._forget(run)

    def _forget(self, run: _Run) -> None:
        self._running.pop(run.request, None)
        run.children.clear()
        if self._drained is not None and not self._running:
            self._call_soon(self._drained)


def _is_skipped(step: Step, tensors: dict[int, Array | None], skipped: set[int]) -> bool:
    if step.when is not None and not step.when.holds(tensors[step.when.tensor]):
        return True
    return any(edge.tensor in skipped and not edge.spec.optional for edge in step.inputs)
