"""What processes that this one forks do not keep open: a connection, or a lock on a file, would outlive this process.

A Python model may fork, itself or through a library (`multiprocessing`, workers that load data). Its children have all
that is open in the replica, and may live on when that is killed.
"""

import contextlib
import os
import stat
from typing import Final

_FIRST: Final = 3
"""What is below is standard input, output and error."""
_files: Final[dict[int, tuple[int, int]]] = {}
"""What the descriptors were of: one of them may be of something else by now, which children keep."""


def keep_from_children(descriptor: int) -> None:
    """Have no child that is forked from now on keep a socket or file open."""
    _files[descriptor] = _file_of(descriptor)


def keep_all_from_children() -> None:
    """Have no child that is forked from now on keep a socket open that is there now, as by which Ray sees a death."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the folder is closed by now
            if int(name) >= _FIRST and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                keep_from_children(int(name))


def _file_of(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _leave_to_parent() -> None:
    """Have each descriptor be that of nothing: who closes it here once more is to close no other."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor, file in _files.items():
            with contextlib.suppress(OSError):
                if _file_of(descriptor) == file:
                    os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
    _files.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
