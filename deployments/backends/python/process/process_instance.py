"""An instance of a Python model in a process of its own, which is started again when it dies."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deployments.backends.backend import Batch, ModelLoadError, RemoteInstance
from deployments.backends.python.process.child import Child, LoadOrder
from deployments.backends.python.process.restart import Restart
from deployments.backends.python.server import ModelServer
from deployments.log.line_format import about_requests
from protocol.errors import Internal

if TYPE_CHECKING:
    from deployments.core.clock import Clock, Timer

_LOG = logging.getLogger(__name__)

_READY_TIMEOUT_S: Final = 5.0
_KILL_TIMEOUT_S: Final = 2.0


class ProcessInstance(RemoteInstance):
    """Runs batches in its process; a death costs the batch that ran.

    The process is started again as `Restart` says. A batch that takes longer than `execution_timeout_s` (0: may take
    any time) ends the process.
    """

    def __init__(self, order: LoadOrder, server: ModelServer | None, execution_timeout_s: float = 0.0) -> None:
        """Start the process and have it load the model; blocks.

        Raises:
            ModelLoadError: with the reason.
        """
        self.name = order.name
        self._loaded = False
        self._order = order
        self._server = server
        self._execution_timeout_s = execution_timeout_s
        self._batch: Batch | None = None
        self._timer: Timer | None = None
        self._closing = False
        self._resting = False  # there is no process until it is time to start it again
        self._gone = threading.Event()
        self._clock: Clock | None = None
        self._done: Callable[[Batch], None] = _nobody
        self._changed: Callable[[], None] = _nothing
        self._child = self._start()
        self._loaded = True

    @property
    def alive(self) -> bool:
        """Whether it can run batches: not from the moment on in which its process has ended, or is told to."""
        return self._loaded and not self._child.doomed

    def execute(self, batch: Batch) -> None:
        """Run a batch and wait for it, before the instance is attached to a loop."""
        self._child.execute(batch, self._execution_timeout_s)

    def attach(self, clock: "Clock", done: Callable[[Batch], None], changed: Callable[[], None]) -> None:
        """Belong to an event loop from now on; see `RemoteInstance`."""
        self._clock, self._done, self._changed = clock, done, changed
        self._restart = Restart(clock, self._start_again)
        self._child.attach(clock)

    def begin(self, batch: Batch) -> None:
        """Send the batch to the process."""
        self._child.begin(batch)
        self._batch = batch
        if self._execution_timeout_s:
            assert self._clock is not None
            self._timer = self._clock.call_later(self._execution_timeout_s, self._time_out)

    def give_up(self, reason: str) -> None:
        """End the process, and so the batch that it runs; `reason` is a predicate."""
        self._child.kill(reason)

    @property
    def has_own_readiness(self) -> bool:
        """Whether the model has an `is_ready`."""
        return self._child.has_own_readiness

    def is_ready(self) -> bool:
        """Return what the model's own `is_ready` says; blocking, five seconds at most."""
        return self.alive and self._child.is_ready(_READY_TIMEOUT_S)

    def begin_close(self) -> None:
        """Tell the process to finish and to end; any thread may call this."""
        self._closing = True
        if self._resting:
            self._gone.set()
        self._child.say_close()

    def close(self, timeout_s: float = 30.0) -> None:
        """Have the process end in order, or kill it when it has not after `timeout_s`; blocks."""
        if not self._closing:
            self.begin_close()
        self._await_end(timeout_s)
        if self._order.environment is not None:
            self._order.environment.let_go()

    def _await_end(self, timeout_s: float) -> None:
        child = self._child
        if self._clock is None:
            if not self._gone.is_set() and not child.wait(timeout_s):
                child.kill("did not end when it was told to")
            child.release()
            self._gone.set()
            return
        if self._gone.wait(timeout_s):
            return
        _LOG.error("the process of model instance '%s' still runs after %g s and is ended", self.name, timeout_s)
        child.kill("did not end when it was told to")
        self._gone.wait(_KILL_TIMEOUT_S)

    def _start(self) -> Child:
        try:
            child = Child(self._order, self._server, self._finished, self._died)
        except OSError as error:
            raise ModelLoadError(f"the process of model instance '{self.name}' cannot be started: {error}") from error
        self._child = child
        child.load()
        return child

    def _finished(self, batch: Batch) -> None:
        self._batch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._done(batch)

    def _time_out(self) -> None:
        self._timer = None
        batch = self._batch
        self._child.read_results()  # that came while other callbacks ran
        if self._batch is batch:
            self._child.time_out(self._execution_timeout_s)

    def _died(self) -> None:
        clock, child = self._clock, self._child
        if clock is None or not self._loaded:
            return  # it loads, or runs its warm-up: whoever waits for that hears of it
        self._loaded = False
        how = f"the process of model instance '{self.name}' {child.ending()}"
        error = Internal(f"Failed to process the request(s) for model instance '{self.name}', message: {how}")
        batch, unanswered = self._batch, child.take_open()
        child.release()
        if not self._closing:
            running = batch.requests if batch and not self._order.decoupled else []
            with_it = [request for request, _ in unanswered] + running
            whose = about_requests(Path(self._order.model_path).name, None, with_it)
            _LOG.error("%s; %d requests were with it", how, len(with_it), extra=whose)
        self._rest()
        self._changed()
        for _, take in unanswered:
            take(error)
        if batch is not None:
            batch.answered = self._order.decoupled
            batch.results = () if batch.answered else [error] * len(batch.requests)
            self._finished(batch)

    def _rest(self) -> None:
        self._resting = True
        if self._closing:
            self._gone.set()
        else:
            self._restart.begin()

    def _start_again(self) -> None:
        if self._closing:
            return
        self._resting = False
        try:
            threading.Thread(target=self._load_again, name=f"{self.name}-restart", daemon=True).start()
        except RuntimeError as error:  # the system has no more
            self._loaded_again(ModelLoadError(str(error)))

    def _load_again(self) -> None:
        reason: ModelLoadError | None = None
        try:
            self._start()
        except ModelLoadError as error:
            reason = error
        except Exception as error:
            _LOG.exception("model instance '%s' cannot be started", self.name)
            reason = ModelLoadError(f"{type(error).__name__}: {error}")
        assert self._clock is not None
        try:
            self._clock.call_soon_threadsafe(lambda: self._loaded_again(reason))
        except RuntimeError:  # the loop is closed
            if reason is None:
                self._child.kill("is needed no more")

    def _loaded_again(self, reason: ModelLoadError | None) -> None:
        clock = self._clock
        assert clock is not None
        if self._closing:
            if reason is None:
                self._child.kill("is needed no more")
                self._child.release()
            self._gone.set()
            return
        if reason is not None:
            _LOG.error("model instance '%s' cannot be loaded again: %s", self.name, reason.reason)
            self._rest()
            return
        _LOG.info("model instance '%s' has a new process", self.name)
        self._restart.started()
        self._loaded = True
        self._child.attach(clock)
        self._changed()


def _nobody(batch: Batch) -> None:
    raise AssertionError("the instance belongs to no pool")


def _nothing() -> None:
    pass
