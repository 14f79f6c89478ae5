"""How often Ray wakes the main thread of a worker that has nothing to do."""

import asyncio
import ctypes
import os
import platform
import re
import struct
import threading
from pathlib import Path
from typing import Final

PERIOD_S: Final = 0.1
"""How long a signal may wait for its handler in Python from then on."""

_TRIES: Final = 50
_TRY_S: Final = 0.1
_EPOLL_WAIT: Final = {"x86_64": ("232", "281"), "aarch64": ("22",)}
"""Numbers of epoll_wait(2) and epoll_pwait(2)."""
_FOR_EVER: Final = 0xFFFFFFFF
_WATCHED: Final = re.compile(r"tfd:\s+(\d+) events:\s+[0-9a-f]+ data:\s+([0-9a-f]+)")
# Of <sys/epoll.h> and <time.h>.
_EPOLL_CTL_ADD: Final = 1
_EPOLL_CTL_MOD: Final = 3
_EPOLLIN: Final = 0x1
_EPOLLET: Final = 1 << 31
_EPOLL_EVENT: Final = "<IQ" if platform.machine() == "x86_64" else "<IxxxxQ"
_CLOCK_MONOTONIC: Final = 1


def wake_main_thread_less() -> None:
    """Have the main thread look for signals ten times a second, where Ray has it look a hundred times.

    Each time costs some 60 µs and takes the interpreter's lock: 0.65 % of a core for each process of a service.

    The loop that Ray runs there (Boost.Asio's) waits with epoll(7) for two descriptors: an eventfd, by which others
    hand it work, and a timerfd, which it sets to 10 ms each time. The second is watched no more, and one that goes off
    every `PERIOD_S` is watched in its name. Where the loop looks different from that, nothing is changed.

    Call it where an asyncio loop runs on a thread that is not the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        _try(asyncio.get_running_loop(), _TRIES)


def _try(loop: asyncio.AbstractEventLoop, tries: int) -> None:
    epoll = _awaited_epoll(os.getpid())  # the main thread has the number of its process
    if epoll is None:  # it is doing something; see whether it waits later
        if tries:
            loop.call_later(_TRY_S, _try, loop, tries - 1)
    elif timer := _timer_of_two(epoll):
        _replace(epoll, *timer)


def _awaited_epoll(thread_id: int) -> int | None:
    """Return the descriptor of the epoll(7) that a thread waits with, when it waits with one and without an end."""
    try:
        number, *arguments = Path(f"/proc/self/task/{thread_id}/syscall").read_text().split()
    except OSError:
        return None
    if number not in _EPOLL_WAIT.get(platform.machine(), ()) or int(arguments[3], 16) & _FOR_EVER != _FOR_EVER:
        return None
    return int(arguments[0], 16)


def _timer_of_two(epoll: int) -> tuple[int, int] | None:
    """Return the watched timerfd and the data it is watched with, if it and an eventfd are all that is watched."""
    try:
        watched = _WATCHED.findall(Path(f"/proc/self/fdinfo/{epoll}").read_text())
        kinds = {os.readlink(f"/proc/self/fd/{number}"): (int(number), int(data, 16)) for number, data in watched}
    except OSError:
        return None
    if len(watched) != len(kinds) or kinds.keys() != {"anon_inode:[eventfd]", "anon_inode:[timerfd]"}:
        return None
    return kinds["anon_inode:[timerfd]"]


def _replace(epoll: int, timer: int, data: int) -> None:
    """Watch a timer of our own under the data of another one, which is watched no more."""
    libc = ctypes.CDLL(None)
    slower = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if slower < 0:
        return
    nanoseconds = int(PERIOD_S * 1e9)
    # Edge-triggered, since nobody reads it: its next expiry is the next edge.
    event = struct.pack(_EPOLL_EVENT, _EPOLLIN | _EPOLLET, data)
    if libc.timerfd_settime(slower, 0, struct.pack("<4q", 0, nanoseconds, 0, nanoseconds), None) or libc.epoll_ctl(
        epoll, _EPOLL_CTL_ADD, slower, event
    ):
        os.close(slower)
        return
    libc.epoll_ctl(epoll, _EPOLL_CTL_MOD, timer, struct.pack(_EPOLL_EVENT, 0, data))
