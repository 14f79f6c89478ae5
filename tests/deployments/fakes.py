"""A clock that tests turn by hand, an instance without a framework, and a pool whose batches tests finish."""

import asyncio
import queue
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.counts import BATCH_REASON, BatchReasons, Label
from deployments.core.late_answers import LateAnswers
from deployments.core.response_cache import ResponseCache, open_response_cache
from deployments.core.statistics import ModelStatistics
from deployments.lane.work_queue import WorkQueue
from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse

MS = 1_000_000


class FakeTimer:
    def __init__(self, when_ns: int, call: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time stands still until `advance`; calls wait until `turn`."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_000
        self.soon: list[Callable[[], None]] = []
        self.timers: list[FakeTimer] = []
        self.from_threads: queue.Queue[Callable[[], None]] = queue.Queue()

    def now_ns(self) -> int:
        return self.time_ns

    def call_soon(self, call: Callable[[], None], /) -> None:
        self.soon.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(self.time_ns + round(delay_s * 1e9), call)
        self.timers.append(timer)
        return timer

    def call_soon_threadsafe(self, call: Callable[[], None], /) -> None:
        self.from_threads.put(call)

    def turn(self) -> None:
        """Make the calls that were waiting when the turn began."""
        calls, self.soon = self.soon, []
        for call in calls:
            call()

    def run(self) -> None:
        """Turn until nothing waits."""
        while self.soon:
            self.turn()

    def wait_for_thread(self) -> None:
        """Make one call that a thread asks for, then turn until nothing waits."""
        self.from_threads.get(timeout=10)()
        self.run()

    def advance(self, ms: float) -> None:
        """Let time pass, timer by timer."""
        end_ns = self.time_ns + round(ms * MS)
        while due := [timer for timer in self.timers if not timer.cancelled and timer.when_ns <= end_ns]:
            timer = min(due, key=lambda timer: timer.when_ns)
            self.timers.remove(timer)
            self.time_ns = max(self.time_ns, timer.when_ns)
            timer.call()
            self.run()
        self.time_ns = end_ns

    def stand_still(self, ms: float) -> None:
        """Let time pass in which nothing is done; then the timers that are overdue come, all at once."""
        self.time_ns += round(ms * MS)
        self.advance(0)


class FakeInstance:
    """Doubles the input X into Y; takes `duration_ns` of the fake clock's time for it."""

    def __init__(self, clock: FakeClock, name: str = "m_0", *, may_run_inline: bool = True) -> None:
        self.name = name
        self.may_run_inline = may_run_inline
        self.clock = clock
        self.duration_ns = 0
        self.error: BaseException | None = None
        self.batches = []
        self.closed = 0

    def execute(self, batch) -> None:
        self.batches.append([request.id for request in batch.requests])
        if self.error is not None:
            raise self.error
        batch.infer_start_ns = self.clock.time_ns
        self.clock.time_ns += self.duration_ns
        batch.infer_end_ns = self.clock.time_ns
        batch.results = [InferResponse({"Y": 2 * request.inputs["X"]}) for request in batch.requests]

    def close(self) -> None:
        self.closed += 1


class FakePool:
    """An instance pool whose batches run until the test says that they are done."""

    alive = True
    on_gpu = False
    may_run_inline = True

    def __init__(self, clock: FakeClock, instance_count: int = 1) -> None:
        self.clock = clock
        self.idle = [object() for _ in range(instance_count)]
        self.instance_count = instance_count
        self.running = []
        self.finished = None
        self.filled = lambda rows: rows
        self.late = LateAnswers(clock)

    @property
    def running_count(self) -> int:
        return len(self.running)

    def holds_back(self, request) -> bool:
        return False

    def run(self, batch) -> None:
        self.idle.pop()
        batch.start_ns = self.clock.now_ns()
        self.running.append(batch)

    def finish(self, index: int = 0, error: ServingError | None = None) -> None:
        """Finish a running batch, and turn until nothing waits."""
        batch = self.running.pop(index)
        batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = self.clock.now_ns()
        batch.results = [error or InferResponse(dict(request.inputs)) for request in batch.requests]
        self.idle.append(object())
        self.finished(batch)
        self.clock.run()


class Answers:
    """Collects replies; `order` holds the request ids as they came."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.results: dict[str, InferResponse | ServingError] = {}

    def __call__(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        self.order.append(request.id)
        self.results[request.id] = result

    def request(self, id: str, rows: int = 1, **rest) -> InferRequest:
        """Return a request whose reply comes here; without `inputs` it has X, `[rows, 2]`."""
        inputs = rest.pop("inputs", None) or {"X": np.full((rows, 2), 1, np.float32)}
        return InferRequest(inputs, rows, self, id=id, **rest)

    def error(self, id: str) -> str:
        """Return the class and text of the error that a request got."""
        result = self.results[id]
        assert isinstance(result, ServingError)
        return f"{type(result).__name__}: {result}"


def reasons_of(statistics: ModelStatistics) -> dict[str, int]:
    """Return how many batches left for each reason."""
    row = statistics.rows.row(Label(BATCH_REASON, "m", 1))
    return {name: count for (name, _), count in zip(BatchReasons._fields_, row.values(), strict=True) if count}


def config_of(text: str) -> ModelConfig:
    """Return a configuration of model m with input X and output Y, `[2]` of FP32, unless the text says otherwise."""
    config = text_format.Parse(text, ModelConfig())
    config.name = config.name or "m"
    if not config.input:
        config.input.add(name="X", data_type="TYPE_FP32", dims=[2])
    if not config.output:
        config.output.add(name="Y", data_type="TYPE_FP32", dims=[2])
    return config


def response_cache(size_bytes: int = 1 << 20) -> ResponseCache:
    """Return a response cache that nobody else can open."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        cache = open_response_cache(Path(folder), size_bytes)
    assert cache is not None
    return cache


def slow_queue() -> WorkQueue:
    """Return a queue for what takes long, on the running loop."""
    return WorkQueue(asyncio.get_running_loop(), "slow", 1)
