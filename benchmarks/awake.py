"""Keeps the cores from sleeping while something is measured, as they do not sleep on a machine that has work.

A request with one client goes from process to process, and so from core to core. A core that sleeps takes 50 µs and
more to wake on a virtual machine, ten times what the message costs otherwise. Linux is told by its power management's
interface that nobody wants to wait for a core, and its idle loop polls instead (`/dev/cpu_dma_latency`, which takes
root and a driver for idle cores).

Elsewhere a program of class SCHED_IDLE spins on each core, which is not as good: to the scheduler that core is busy, so
nobody comes there from the other one's queue, and where each session has a share of its own (autogroup), what wakes
waits for up to 3 ms until the program is preempted.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.measure import MARK

AWAKE_MARK = "awake"
_LATENCY_DEVICE: Final = "/dev/cpu_dma_latency"
_IDLE_DRIVER: Final = Path("/sys/devices/system/cpu/cpuidle/current_driver")
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
def awake() -> Iterator[str]:
    """Keep all cores that this process may use awake; gives what does so."""
    request = _polling()
    if request is None:
        with _spinning():
            yield "a program spins on each core"
        return
    try:
        yield "the kernel polls on idle cores"
    finally:
        os.close(request)


def _polling() -> int | None:
    """Ask the kernel that idle cores poll, for as long as this descriptor is open; None where it cannot be asked."""
    try:
        if _IDLE_DRIVER.read_text().strip() == "none":
            return None
        request = os.open(_LATENCY_DEVICE, os.O_WRONLY)
    except OSError:
        return None
    os.write(request, struct.pack("i", 0))  # µs that a core may take to wake
    return request


@contextmanager
def _spinning() -> Iterator[None]:
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
