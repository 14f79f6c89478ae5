"""Keeps the cores from sleeping while something is measured, as they do not sleep on a machine that has work.

A request with one client goes from process to process, and so from core to core. A core that sleeps takes 50 µs and
more to wake on a virtual machine, ten times what the message costs otherwise. Here a program spins on each core
whenever nothing else wants to run: the scheduler class is SCHED_IDLE, so it takes no time from anybody.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure import MARK

AWAKE_MARK = "awake"
_SPIN = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(0, {int(sys.argv[1])})
try:  # where each session has a share of its own, the least
    with open("/proc/self/autogroup", "w") as autogroup:
        autogroup.write("19")
except OSError:
    pass
while True:
    pass
"""


@contextmanager
def awake() -> Iterator[None]:
    """Keep all cores that this process may use awake."""
    environment = {**os.environ, MARK: AWAKE_MARK}
    spinning = [
        subprocess.Popen([sys.executable, "-c", _SPIN, str(core)], env=environment, start_new_session=True)
        for core in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
