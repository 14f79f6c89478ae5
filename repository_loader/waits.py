"""What the reading of repositories waits for just now: stores that are far away, and code of models."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_waits: dict[object, tuple[float, str]] = {}


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Have it be known what is waited for as long as this block runs; any thread may."""
    key = object()
    _waits[key] = (time.monotonic(), text)
    try:
        yield
    finally:
        del _waits[key]


def longest_wait(after_s: float) -> str:
    """Return what any thread of this process has waited for longest, "" where nothing takes longer than `after_s`."""
    since_s, text = min(tuple(_waits.values()), default=(float("inf"), ""))
    return text if time.monotonic() - since_s > after_s else ""
