"""A storm of signals on a process of its own, whose main thread waits again and again."""

import subprocess
import sys

from app.cli.stop_request import StopRequest

PROGRAM = """
import signal, time
from app.cli.stop_request import StopRequest

requests = [StopRequest()]
signal.signal(signal.SIGALRM, lambda number, frame: requests[0].make())
signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
ends = time.monotonic() + 3
while time.monotonic() < ends:
    requests[0] = StopRequest()
    for _ in range(200):
        requests[0].wait(0.0001)
signal.setitimer(signal.ITIMER_REAL, 0)
print("still here")
"""


def test_a_handler_may_interrupt_the_wait_anywhere() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


def test_a_wait_ends_in_time_or_when_asked() -> None:
    request = StopRequest()
    assert not request.wait(0.01)
    request.make()
    assert request.wait(30)
    assert request.wait()
