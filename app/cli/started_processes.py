"""Every process that this one has started, and that those have: none may outlive it."""

import contextlib
import ctypes
import time

import psutil

from deployments.replica.node_folder import remove_abandoned

_PR_SET_CHILD_SUBREAPER = 36
_KILL_S = 5.0
_LOOK_AGAIN_S = 0.05


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies from now on, where the system can do that (prctl(2)).

    Otherwise a process whose parent has ended is nobody's descendant, and cannot be found.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_all() -> None:
    """Kill all descendants, and those that they start meanwhile; returns when none is left, or after some seconds."""
    deadline_s = time.monotonic() + _KILL_S
    while left := _descendants():
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)
        if time.monotonic() > deadline_s:
            return


def _descendants() -> list[psutil.Process]:
    """Return all descendants; those of one that ends in the moment of the first look are seen at the second."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    if not found:
        time.sleep(_LOOK_AGAIN_S)
        found = psutil.Process().children(recursive=True)
    return found


def end_everything(timeout_s: float = 0.0) -> None:
    """Give descendants time to end by themselves, kill those that have not, and remove what they have shared."""
    adopt_orphans()
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=timeout_s)
    kill_all()
    remove_abandoned()
