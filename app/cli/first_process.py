"""What the first process of a container has to do: no other collects the processes whose parents have ended."""

import contextlib
import os
import signal
from typing import Final

_PASSED_ON: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_SI_KERNEL: Final = 0x80
_FAILED_BY_SIGNAL: Final = 128
"""Plus the signal is the exit code of who ended by it, as shells have it."""


def run_below_first() -> None:
    """Return in a child of this process, if this is the first one of its namespace (pid_namespaces(7)).

    Itself it stays, passes on the signals that stop a server, collects whatever ends, and ends with its child, and with
    that one's exit code. Otherwise each process that a model leaves behind, or that ends with its replica, would
    remain as a zombie, until the container may have no more. Call it before any thread is started.
    """
    if os.getpid() != 1:
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    while (code := _collect(child)) is None:
        came = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        # Ctrl-C comes from the kernel, to each process that the terminal has in the foreground.
        if came.si_signo in _PASSED_ON and came.si_code != _SI_KERNEL:
            os.kill(child, came.si_signo)
    os._exit(code if code >= 0 else _FAILED_BY_SIGNAL - code)


def _collect(child: int) -> int | None:
    """Collect all that have ended; returns the child's exit code, or minus its signal, when that has."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code
