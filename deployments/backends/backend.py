"""The seam between the core and a framework: a backend loads a package into instances, an instance runs batches."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse

if TYPE_CHECKING:  # the processes of Python models start without what it imports
    from deployments.backends.answer import Late
    from deployments.core.clock import Clock
    from repository_loader.package import InstanceSpec, ModelPackage


class ModelLoadError(Exception):
    """A model version cannot be loaded; the message is the reason that the repository index shows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Batch:
    """Requests that run together, and what came of them.

    The instance sets `results` (one response or error for each request, same order) and the two inner times; that of
    a decoupled model sets `answered` instead of results, and its responses reach `request.reply` by themselves. One
    that is free again before its model has answered every request sets `late` as well. The scheduler sets the outer
    times. Times are monotonic nanoseconds: from `start_ns` to `infer_start_ns` inputs are gathered, until
    `infer_end_ns` the model runs, until `end_ns` outputs are taken apart. `before_ns` is the `start_ns` of the batch
    before, 0 for the first. `reason` is the field of `BatchReasons` that says why it left when it did, "" for what is
    not batched.
    """

    __slots__ = (
        "answered",
        "before_ns",
        "end_ns",
        "infer_end_ns",
        "infer_start_ns",
        "late",
        "reason",
        "requests",
        "results",
        "rows",
        "start_ns",
    )

    def __init__(self, requests: list[InferRequest], rows: int, reason: str = "") -> None:
        self.requests = requests
        self.reason = reason
        self.rows = rows
        self.results: Sequence[InferResponse | ServingError] = ()
        self.answered = False
        self.late: Late | None = None
        self.before_ns = 0
        self.start_ns = 0
        self.infer_start_ns = 0
        self.infer_end_ns = 0
        self.end_ns = 0

    @property
    def own_requests(self) -> Sequence[InferRequest]:
        """Its requests, without those that only fill rows."""
        return self.requests

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for any of its requests."""
        return all([request.cancelled for request in self.own_requests])


class ModelInstance(Protocol):
    """One execution context of a loaded model. `execute` is never called twice at the same time on one instance."""

    name: str
    may_run_inline: bool
    """False when `execute` must never run on an event loop's thread (it may wait for the loop)."""

    def execute(self, batch: Batch) -> None:
        """Run the batch and set its results and inner times.

        Outputs are shaped as the client sees them (`reshape` undone), in the model's order, only the requested ones.
        A `ServingError` raised fails every request of the batch with that error; any other exception fails them as
        `Internal`. Called on the loop's thread or on one worker thread.
        """
        ...

    def close(self) -> None:
        """Free what the instance holds; called once, after its last batch."""
        ...


class RemoteInstance:
    """An instance that runs elsewhere: `begin` returns at once, and the results of the batch come later.

    `execute` waits instead, for use before `attach`.
    """

    name: str
    may_run_inline = False

    @property
    def alive(self) -> bool:
        """Whether it can run batches."""
        raise NotImplementedError

    def execute(self, batch: Batch) -> None:
        """Do what `ModelInstance.execute` does."""
        raise NotImplementedError

    def attach(self, clock: "Clock", done: Callable[[Batch], None], changed: Callable[[], None]) -> None:
        """Belong to an event loop, on whose thread `begin`, `done` and `changed` (of `alive`) are called."""
        raise NotImplementedError

    def begin(self, batch: Batch) -> None:
        """Run a batch; `done` is called with it, later and once. An error that is raised has failed all of it."""
        raise NotImplementedError

    def give_up(self, reason: str) -> None:
        """End the batch that runs, as failed; `reason` is a predicate."""
        raise NotImplementedError

    def begin_close(self) -> None:
        """Finish what runs and take nothing more; returns at once."""
        raise NotImplementedError

    def close(self, timeout_s: float = 30.0) -> None:
        """Do what `ModelInstance.close` does, in `timeout_s` seconds."""
        raise NotImplementedError


class Backend(Protocol):
    """Loads model versions of one framework; made with the core's clock, or None."""

    def load(self, package: "ModelPackage", specs: "Sequence[InstanceSpec]") -> list[ModelInstance]:
        """Load the version and return one instance for each spec; blocking, called on a worker thread.

        Raises:
            ModelLoadError: with Triton's text where it has one.
        """
        ...
