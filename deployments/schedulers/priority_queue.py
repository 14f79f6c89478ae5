"""The waiting requests of a dynamic batcher, by priority level, under each level's queue policy."""

from collections import deque
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

from protocol.errors import Unavailable
from protocol.infer import InferRequest

NEVER_NS = 1 << 62


class _Level:
    """The requests of one priority: those in time, then those whose timeout has passed but who may still run."""

    __slots__ = ("delayed", "next_deadline_ns", "policy", "waiting")

    def __init__(self, policy: ModelQueuePolicy) -> None:
        self.policy = policy
        self.waiting: deque[InferRequest] = deque()
        self.delayed: deque[InferRequest] = deque()
        self.next_deadline_ns = NEVER_NS  # never later than the first deadline there is

    def deadline_ns(self, request: InferRequest) -> int:
        """Return when the request's time in the queue is over; its own timeout counts only if allowed and shorter."""
        timeout_us = self.policy.default_timeout_microseconds
        if self.policy.allow_timeout_override and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        return request.queued_ns + timeout_us * 1000 if timeout_us else NEVER_NS

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Take out the requests whose time is over, and return those that must not run any more."""
        late = [request for request in self.waiting if self.deadline_ns(request) <= now_ns]
        if late:
            gone = set(map(id, late))
            self.waiting = deque(request for request in self.waiting if id(request) not in gone)
        self.next_deadline_ns = min(map(self.deadline_ns, self.waiting), default=NEVER_NS)
        if self.policy.timeout_action == ModelQueuePolicy.DELAY:
            self.delayed.extend(late)
            return []
        return late


class PriorityQueue:
    """Holds requests in the order they run: level by level, 1 first; within a level in order of arrival.

    A priority outside the model's levels counts as the default level. `ModelQueuePolicy` in `model_config.proto`.
    """

    def __init__(self, batching: ModelDynamicBatching) -> None:
        self._default_level = max(1, batching.default_priority_level)
        self._levels = [
            _Level(batching.priority_queue_policy.get(level, batching.default_queue_policy))
            for level in range(1, max(1, batching.priority_levels) + 1)
        ]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InferRequest]:
        for level in self._levels:
            yield from level.waiting
            yield from level.delayed

    @property
    def next_deadline_ns(self) -> int:
        """When `expire` is worth calling next, `NEVER_NS` if nothing can expire."""
        return min(level.next_deadline_ns for level in self._levels)

    def append(self, request: InferRequest) -> None:
        """Queue a request.

        Raises:
            Unavailable: its level is full.
        """
        priority = request.priority if 0 < request.priority <= len(self._levels) else self._default_level
        level = self._levels[priority - 1]
        limit = level.policy.max_queue_size
        if limit and len(level.waiting) + len(level.delayed) >= limit:
            raise Unavailable("Exceeds maximum queue size")
        level.waiting.append(request)
        level.next_deadline_ns = min(level.next_deadline_ns, level.deadline_ns(request))
        self._count += 1

    def popleft(self) -> InferRequest:
        """Remove the request that is first in order."""
        for level in self._levels:
            if level.waiting or level.delayed:
                self._count -= 1
                return level.waiting.popleft() if level.waiting else level.delayed.popleft()
        raise IndexError("the queue is empty")

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Apply the timeouts: return the rejected requests, which are removed, and put the delayed ones behind."""
        rejected: list[InferRequest] = []
        for level in self._levels:
            if level.next_deadline_ns <= now_ns:
                rejected += level.expire(now_ns)
        self._count -= len(rejected)
        return rejected

    def remove_cancelled(self) -> list[InferRequest]:
        """Remove the cancelled requests and return them."""
        cancelled = [request for request in self if request.cancelled]
        for level in self._levels:
            level.waiting = deque(request for request in level.waiting if not request.cancelled)
            level.delayed = deque(request for request in level.delayed if not request.cancelled)
        self._count -= len(cancelled)
        return cancelled
