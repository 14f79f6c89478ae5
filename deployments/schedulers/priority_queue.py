"""The waiting requests of a dynamic batcher, by priority level, under each level's queue policy."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

from deployments.core.clock import NEVER_NS
from protocol.errors import QueueFull
from protocol.infer import InferRequest

_SLACK: Final = 64
_KEPT_LEVELS: Final = 64


class _Level:
    """The requests of one priority: those in time, then those whose timeout has passed but who may still run.

    Both are numbered in order of arrival. Deadlines lie in a heap, so that a timeout costs what it takes out, not what
    waits; those of requests that have left are dropped when they come up, or when they are most of the heap.
    """

    __slots__ = ("_count", "_deadlines", "delayed", "policy", "waiting")

    def __init__(self, policy: ModelQueuePolicy) -> None:
        self.policy = policy
        self.waiting: OrderedDict[int, InferRequest] = OrderedDict()
        self.delayed: OrderedDict[int, InferRequest] = OrderedDict()
        self._deadlines: list[tuple[int, int]] = []
        self._count = 0

    def append(self, request: InferRequest) -> None:
        """Queue a request, and note when its time in the queue is over: its own timeout counts only if allowed."""
        number = self._count
        self._count = number + 1
        self.waiting[number] = request
        timeout_us = self.policy.default_timeout_microseconds
        if self.policy.allow_timeout_override and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        if timeout_us:
            if len(self._deadlines) > 2 * len(self.waiting) + _SLACK:
                self._deadlines = [entry for entry in self._deadlines if entry[1] in self.waiting]
                heapify(self._deadlines)
            heappush(self._deadlines, (request.queued_ns + timeout_us * 1000, number))

    def popleft(self) -> InferRequest:
        """Remove the first request."""
        return (self.waiting or self.delayed).popitem(last=False)[1]

    @property
    def next_deadline_ns(self) -> int:
        """The first deadline of a waiting request, `NEVER_NS` without one."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self.waiting:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else NEVER_NS

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Take out the requests whose time is over, and return those that must not run any more."""
        late = []
        while self.next_deadline_ns <= now_ns:
            late.append(heappop(self._deadlines)[1])
        late.sort()
        requests = {number: self.waiting.pop(number) for number in late}
        if self.policy.timeout_action == ModelQueuePolicy.DELAY:
            self.delayed.update(requests)
            return []
        return list(requests.values())

    def remove_cancelled(self) -> list[InferRequest]:
        """Remove the cancelled requests and return them."""
        removed = []
        for requests in (self.waiting, self.delayed):
            for number in [number for number, request in requests.items() if request.cancelled]:
                removed.append(requests.pop(number))
        return removed


class PriorityQueue:
    """Holds requests in the order they run: level by level, 1 first; within a level in order of arrival.

    A priority outside the model's levels counts as the default level. A model without levels has the default policy
    only. `ModelQueuePolicy` in `model_config.proto`.
    """

    def __init__(self, batching: ModelDynamicBatching) -> None:
        self._default_level = max(1, batching.default_priority_level)
        self._level_count = max(1, batching.priority_levels)
        self._policies = dict(batching.priority_queue_policy) if batching.priority_levels else {}
        self._default_policy = batching.default_queue_policy
        # Those that are or were in use, by priority, 1 first: a model may have 2^64 - 1.
        self._by_priority: dict[int, _Level] = {}
        self._levels: list[_Level] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InferRequest]:
        for level in self._levels:
            yield from level.waiting.values()
            yield from level.delayed.values()

    @property
    def oldest_queued_ns(self) -> int:
        """When the first request of a level was queued, that of the oldest such; 0 when there is none."""
        held = (requests for level in self._levels for requests in (level.waiting, level.delayed))
        return min((next(iter(requests.values())).queued_ns for requests in held if requests), default=0)

    @property
    def next_deadline_ns(self) -> int:
        """When `expire` is worth calling next, `NEVER_NS` if nothing can expire."""
        return min([level.next_deadline_ns for level in self._levels], default=NEVER_NS)

    def append(self, request: InferRequest) -> None:
        """Queue a request.

        Raises:
            QueueFull: its level is full.
        """
        priority = request.priority if 0 < request.priority <= self._level_count else self._default_level
        level = self._by_priority.get(priority) or self._add_level(priority)
        limit = level.policy.max_queue_size
        if limit and len(level.waiting) + len(level.delayed) >= limit:
            raise QueueFull
        level.append(request)
        self._count += 1

    def _add_level(self, priority: int) -> _Level:
        """Add the level of a priority, in place of those that are empty if there are many."""
        levels = self._by_priority
        if len(levels) >= _KEPT_LEVELS:
            levels = {number: level for number, level in levels.items() if level.waiting or level.delayed}
        added = levels[priority] = _Level(self._policies.get(priority, self._default_policy))
        self._by_priority = dict(sorted(levels.items()))
        self._levels = list(self._by_priority.values())
        return added

    def popleft(self) -> InferRequest:
        """Remove the request that is first in order."""
        for level in self._levels:
            if level.waiting or level.delayed:
                self._count -= 1
                return level.popleft()
        raise IndexError("the queue is empty")

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Apply the timeouts: return the rejected requests, which are removed, and put the delayed ones behind."""
        rejected: list[InferRequest] = []
        for level in self._levels:
            rejected += level.expire(now_ns)
        self._count -= len(rejected)
        return rejected

    def remove_cancelled(self) -> list[InferRequest]:
        """Remove the cancelled requests and return them."""
        cancelled = [request for level in self._levels for request in level.remove_cancelled()]
        self._count -= len(cancelled)
        return cancelled
