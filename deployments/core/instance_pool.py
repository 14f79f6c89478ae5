"""A model's instances: each batch runs on an idle one, in the event loop when it is short, else in a thread."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread

from deployments.backends.backend import Batch, ModelInstance, RemoteInstance
from deployments.backends.gpu_fault import GpuFault
from deployments.core.clock import Clock
from deployments.core.inline_gate import InlineGate
from deployments.core.late_answers import LateAnswers
from deployments.log.line_format import about_requests
from protocol.errors import Internal, ServingError, Unavailable
from protocol.infer import InferRequest

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0


class Worker:
    """One instance and the thread that runs it, which starts with the first batch that needs it.

    `batch` is what it has to do; `lost` says that nobody waits for it any more. `remote` is an instance that runs
    elsewhere, and needs no thread.
    """

    __slots__ = ("batch", "batches", "instance", "lost", "remote", "thread")

    def __init__(self, instance: ModelInstance) -> None:
        self.instance = instance
        self.remote = instance if isinstance(instance, RemoteInstance) else None
        self.batch: Batch | None = None
        self.lost = False
        self.batches: SimpleQueue[Batch | None] = SimpleQueue()
        self.thread: Thread | None = None


class InstancePool:
    """Runs batches on idle instances and says when each is done.

    A batch runs inline, on the loop's thread, when its instance, `may_run_inline` and the `InlineGate` allow that, in
    the instance's thread otherwise. `finished` is set by the scheduler and is called on the loop's thread, for an
    inline batch before `run` returns. `idle` holds the instances that wait for work: truthy when `run` may be called.
    An instance that runs elsewhere may die and come back: `died` and `revived` are set by the scheduler too, and so is
    `grow`, which a pool in which batches wait calls before it runs one, and `waits`, which such a pool tells how many
    requests more wait in it, or fewer. `late` has the requests that their model answers after their batch. All but
    `begin_close` and `close` belongs to the loop's thread.
    """

    def __init__(self, instances: Sequence[ModelInstance], clock: Clock) -> None:
        self.may_run_inline = True
        self.idle = [Worker(instance) for instance in reversed(instances)]
        self.finished: Callable[[Batch], None] = _nobody
        self.on_gpu = any([getattr(instance, "on_gpu", False) for instance in instances])
        self._workers = tuple(self.idle)
        self._fault = ""
        self._closing = False
        self._last_start_ns = 0
        self._now_ns = clock.now_ns
        self._call_soon_threadsafe = clock.call_soon_threadsafe
        self._gate = InlineGate()
        self.died: Callable[[], None] = _nothing
        self.revived: Callable[[], None] = _nothing
        self.grow: Callable[[Batch], None] = _stays_as_it_is
        self.waits: Callable[[int], None] = _unheard
        self.late = LateAnswers(clock)
        self._alive_changed: Callable[[], None] = _nothing
        for worker in self._workers:
            if worker.remote is not None:
                worker.remote.attach(clock, partial(self._done, worker), partial(self._changed, worker))

    @property
    def instance_count(self) -> int:
        """How many instances there are."""
        return len(self._workers)

    @property
    def instances(self) -> list[ModelInstance]:
        """All instances."""
        return [worker.instance for worker in self._workers]

    def filled(self, rows: int) -> int:
        """Return how many rows a batch of so many runs as."""
        filled = getattr(self._workers[0].instance, "filled", None)
        return rows if filled is None else filled(rows)

    @property
    def running_count(self) -> int:
        """How many instances are at work."""
        return sum(worker.batch is not None for worker in self._workers)

    @property
    def executing_count(self) -> int:
        """How many requests are in instances, or have left them and are yet to be answered."""
        running = sum(len(worker.batch.own_requests) for worker in self._workers if worker.batch is not None)
        return running + self.late.count

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest of those that `run` was given, 0 when none waits."""
        return 0

    def holds_back(self, request: InferRequest) -> bool:
        """Whether a request that `run` was given does not run yet."""
        del request
        return False

    @property
    def alive(self) -> bool:
        """Whether an instance can run batches."""
        return any(worker.remote is None or worker.remote.alive for worker in self._workers)

    def when_alive_changes(self, call: Callable[[], None]) -> None:
        """Make the call when an instance has died or come back."""
        self._alive_changed = call

    def run(self, batch: Batch) -> None:
        """Run the batch on an idle instance; there must be one."""
        worker = self.idle.pop()
        if worker.remote is not None:
            self._begin(worker, worker.remote, batch)
            return
        if worker.instance.may_run_inline and self.may_run_inline and self._gate.allows(batch.rows):
            self._execute(worker.instance, batch)
            self._gate.ran_inline(batch.rows, batch.end_ns - batch.start_ns)
            self.idle.append(worker)
            self.finished(batch)
            return
        if worker.thread is None:
            work = partial(self._work, worker)
            at_home = getattr(worker.instance, "at_home", None)  # of one that belongs to a thread of its own
            target = work if at_home is None else partial(at_home, work)
            thread = Thread(target=target, name=worker.instance.name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more
                fail(batch, Unavailable(failure(worker.instance, str(error))), self._now_ns())
                self.idle.append(worker)
                self.finished(batch)
                return
            worker.thread = thread
        worker.batch = batch
        worker.batches.put(batch)
        # Gives the interpreter up, so that the thread has it before this one has answered all that it has to.
        time.sleep(0)

    def _begin(self, worker: Worker, remote: RemoteInstance, batch: Batch) -> None:
        self._note_start(batch)
        worker.batch = batch
        try:
            remote.begin(batch)
        except ServingError as error:
            fail(batch, error, self._now_ns())
            self._done(worker, batch)
        except Exception as error:  # of ours, about what is in a request: its batch's, not the instance's end
            whose = about_requests("", None, batch.requests)
            log.exception("instance %s was not given a batch", worker.instance.name, extra=whose)
            fail(batch, Internal(failure(worker.instance, f"{type(error).__name__}: {error}")), self._now_ns())
            self._done(worker, batch)

    def _done(self, worker: Worker, batch: Batch) -> None:
        assert worker.remote is not None
        _set_times(batch, self._now_ns())
        worker.batch = None
        if worker.remote.alive:
            self.idle.append(worker)
        self.finished(batch)

    def _changed(self, worker: Worker) -> None:
        assert worker.remote is not None
        if worker.remote.alive:
            self.idle.append(worker)
            self._alive_changed()
            self.revived()
            return
        if worker in self.idle:
            self.idle.remove(worker)
        self._alive_changed()
        self.died()

    def check(self, limit_s: float) -> str:
        """Return why an instance serves no more, "" while all of them do; what it held is answered with the reason.

        That is an instance whose batch still runs, or is not all answered, after `limit_s` (0: never), whose thread has
        ended, or whose GPU has failed.
        """
        self._fault = self.late.check(limit_s) or self._fault
        for worker in self._workers:
            lost = getattr(worker.instance, "gpu_fault", None)  # of a decoupled model, behind a batch that it has taken
            if lost is not None:
                self._note_lost_gpu(worker.instance, lost)
            batch = worker.batch
            if batch is None:
                continue
            if worker.remote is not None:
                if limit_s and self._now_ns() - batch.start_ns > limit_s * 1e9:
                    worker.remote.give_up(f"ran one batch for more than {limit_s:g} s")
                continue
            assert worker.thread is not None
            if not worker.thread.is_alive():
                self._give_up(worker, batch, f"the thread of model instance '{worker.instance.name}' has ended")
            elif limit_s and batch.start_ns and self._now_ns() - batch.start_ns > limit_s * 1e9:
                name = worker.instance.name
                self._give_up(worker, batch, f"model instance '{name}' has run one batch for more than {limit_s:g} s")
        return self._fault

    def _give_up(self, worker: Worker, batch: Batch, fault: str) -> None:
        log.error("%s", fault, extra=about_requests("", None, batch.requests))
        self._fault = fault
        worker.lost, worker.batch = True, None
        fail(batch, Internal(fault), self._now_ns())
        self.finished(batch)

    def begin_close(self) -> None:
        """Let what runs finish and take nothing more; returns at once."""
        if self._closing:
            return
        self._closing = True
        for worker in self._workers:
            if worker.remote is None:
                worker.batches.put(None)
            else:
                worker.remote.begin_close()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let what runs finish, end the threads and close the instances; blocks, and no batch may follow.

        An instance that has not come back after `timeout_s` is left to itself, and logged.
        """
        ends_s = time.monotonic() + timeout_s
        self.begin_close()
        for worker in self._workers:
            if worker.remote is not None:
                worker.remote.close(max(0.0, ends_s - time.monotonic()))
                continue
            if worker.thread is not None:
                worker.thread.join(0.0 if worker.lost else max(0.0, ends_s - time.monotonic()))
                if worker.lost:
                    continue
                if worker.thread.is_alive():
                    log.error("instance %s still runs after %g s and is abandoned", worker.thread.name, timeout_s)
                    continue
                worker.thread = None
            try:
                worker.instance.close()
            except Exception:
                log.exception("instance %s did not close cleanly", worker.instance.name)

    def _work(self, worker: Worker) -> None:
        while (batch := worker.batches.get()) is not None:
            self._execute(worker.instance, batch)
            try:
                self._call_soon_threadsafe(partial(self._returned, worker, batch))
            except RuntimeError:  # the loop is closed: nobody is left to be told
                log.warning("instance %s finished a batch after its event loop had ended", worker.instance.name)
            del batch  # while it waits for the next, it keeps nobody's memory

    def _returned(self, worker: Worker, batch: Batch) -> None:
        if worker.lost:
            return
        worker.batch = None
        self._gate.ran_in_thread(batch.rows, batch.end_ns - batch.start_ns)
        self.idle.append(worker)
        self.finished(batch)

    def _note_lost_gpu(self, instance: ModelInstance, fault: GpuFault) -> None:
        self._fault = f"model instance '{instance.name}' has lost its GPU: {fault.message}"

    def _note_start(self, batch: Batch) -> None:
        batch.before_ns = self._last_start_ns
        batch.start_ns = self._last_start_ns = self._now_ns()

    def _execute(self, instance: ModelInstance, batch: Batch) -> None:
        self._note_start(batch)
        try:
            instance.execute(batch)
            if len(batch.results) != len(batch.requests) and not batch.answered:
                raise Internal(failure(instance, f"{len(batch.results)} results for {len(batch.requests)} requests"))
        except ServingError as error:
            if isinstance(error, GpuFault):
                self._note_lost_gpu(instance, error)
            fail(batch, error, self._now_ns())
        except BaseException as error:  # KeyboardInterrupt and its like would end the thread, and so the instance
            whose = about_requests("", None, batch.requests)
            log.exception("instance %s failed a batch of %d requests", instance.name, len(batch.requests), extra=whose)
            fail(batch, Internal(failure(instance, f"{type(error).__name__}: {error}")), self._now_ns())
        else:
            _set_times(batch, self._now_ns())


def fail(batch: Batch, error: ServingError, now_ns: int) -> None:
    """Have an error be the result of every request of a batch."""
    batch.results = [error.without_frames()] * len(batch.requests)
    _set_times(batch, now_ns)


def _set_times(batch: Batch, end_ns: int) -> None:
    batch.infer_start_ns = batch.infer_start_ns or batch.start_ns or end_ns
    batch.infer_end_ns = batch.infer_end_ns or end_ns
    batch.start_ns = batch.start_ns or batch.infer_start_ns
    batch.end_ns = end_ns


def _nobody(batch: Batch) -> None:
    raise AssertionError("the pool has no scheduler")


def _nothing() -> None:
    pass


def _stays_as_it_is(batch: Batch) -> None:
    pass


def _unheard(change: int) -> None:
    pass


def failure(instance: ModelInstance, message: str) -> str:
    """Return Triton's words for why an instance has failed a batch."""
    return f"Failed to process the request(s) for model instance '{instance.name}', message: {message}"
