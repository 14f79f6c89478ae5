"""What a batch that has waited for resources takes along of the requests that came meanwhile."""

from deployments.backends.backend import Batch
from deployments.schedulers.equal_inputs import EqualInputs
from deployments.schedulers.scheduler import RequestQueue


def take_along(batch: Batch, queue: RequestQueue, preferred: frozenset[int], equal_inputs: EqualInputs | None) -> int:
    """Move requests from the head of the queue into a batch, up to the largest preferred size; returns how many.

    A batch of a preferred size grows to a preferred size only, as one that has just been formed would.
    """
    key = equal_inputs.key(batch.requests[0]) if equal_inputs is not None else None
    largest = max(preferred)
    any_size = batch.rows not in preferred
    rows = batch.rows
    count = 0
    for place, request in enumerate(queue, start=1):
        rows += request.rows
        if rows > largest or request.cancelled or (equal_inputs is not None and equal_inputs.key(request) != key):
            break
        if any_size or rows in preferred:
            count = place
    for _ in range(count):
        request = queue.popleft()
        batch.requests.append(request)
        batch.rows += request.rows
    if count and batch.rows == largest:
        batch.reason = "full"
    return count
