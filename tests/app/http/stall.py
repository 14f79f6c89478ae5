"""How long a loop stands still while a thread of its process is at work."""

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable

_LIBC = ctypes.PyDLL(None)


async def stall_s(work: Callable[[], None]) -> float:
    """Return the longest time between two turns of the loop while a thread works.

    Time in which the system let others run instead, whatever they were doing, does not count, nor more than the
    CPU time that this process took meanwhile.
    """
    worst_s = 0.0
    working = asyncio.get_running_loop().run_in_executor(None, work)
    while not working.done():
        before_s, waited_s, cpu_s = time.perf_counter(), _queued_s(), time.process_time()
        await asyncio.sleep(0.001)
        passed_s = time.perf_counter() - before_s - (_queued_s() - waited_s)
        worst_s = max(worst_s, min(passed_s, time.process_time() - cpu_s))
    await working
    return worst_s


def _queued_s() -> float:
    """Return how long the threads of this process have been ready to run while others ran (proc(5), schedstat).

    The interpreter is kept meanwhile: to read these files as usual would lose it to the thread at work a dozen times.
    """
    queued_ns = 0
    for thread in threading.enumerate():
        file = _LIBC.open(b"/proc/self/task/%d/schedstat" % (thread.native_id or 0), os.O_RDONLY)
        if file >= 0:
            text = ctypes.create_string_buffer(80)
            if _LIBC.read(file, text, 79) > 0:
                queued_ns += int(text.value.split()[1])
            _LIBC.close(file)
    return queued_ns / 1e9
