"""How long one thread keeps the others of its process from running."""

import threading
import time
from collections.abc import Callable

import numpy as np

MAX_HOLD_S = 0.05
_ATTEMPTS = 3


def assert_holds_are_short(work: Callable[[], object]) -> None:
    """Fail if `work` holds the interpreter's lock for long, each time that it is done."""
    holds_s = []
    for _ in range(_ATTEMPTS):
        holds_s.append(_worst_hold_s(work))
        if holds_s[-1] <= MAX_HOLD_S:
            return
    raise AssertionError(f"the interpreter was held for {holds_s} s")


def _worst_hold_s(work: Callable[[], object]) -> float:
    """Return the most CPU time that this thread took between two turns of another one."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    ended = threading.Event()
    times_s = [time.clock_gettime(clock)]

    def look() -> None:
        while not ended.wait(0.0005):
            times_s.append(time.clock_gettime(clock))

    looking = threading.Thread(target=look)
    looking.start()
    work()
    times_s.append(time.clock_gettime(clock))
    ended.set()
    looking.join()
    return float(np.diff(times_s).max())
