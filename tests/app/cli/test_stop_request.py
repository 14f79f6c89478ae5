"""Signals at any moment, on a process of its own, whose main thread waits again and again."""

import subprocess
import sys

from app.cli.stop_request import StopRequest

PROGRAM = """
import random, signal, time
from app.cli.stop_request import StopRequest

requests = [StopRequest()]
timers = {signal.ITIMER_REAL: signal.SIGALRM, signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_VIRTUAL: signal.SIGVTALRM}
for number in timers.values():
    signal.signal(number, lambda number, frame: requests[0].make())
ends = time.monotonic() + 3
while time.monotonic() < ends:
    requests[0] = StopRequest()
    for _ in range(200):
        for timer in timers:
            signal.setitimer(timer, random.uniform(1e-6, 1e-4))
        requests[0].wait(0.0001)
for timer in timers:
    signal.setitimer(timer, 0)
print("still here")
"""
"""Every signal comes once a wait, so that handlers may interrupt each other, but never more of them than there are."""


def test_a_handler_may_interrupt_the_wait_anywhere() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


def test_a_wait_ends_in_time_or_when_asked() -> None:
    request = StopRequest()
    assert not request.wait(0.01)
    request.make()
    assert request.wait(30)
    assert request.wait()
