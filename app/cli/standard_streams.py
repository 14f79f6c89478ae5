"""The standard streams of a command, whatever it was started with, and whoever reads what it prints."""

import contextlib
import io
import os
import select
import sys
from typing import Any, Final

_STREAMS: Final = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))
_PATIENCE_S: Final = 5.0


def open_streams() -> None:
    """Have all three be there, and print what their encoding has no letters for in escapes."""
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:  # it was closed, and its number is the next that is given away
            setattr(sys, name, os.fdopen(os.open(os.devnull, mode), "r" if mode == os.O_RDONLY else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def outlive_readers() -> None:
    """Have what is printed be lost where its reader has gone or stands still, or the disk is full: a server goes on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        out = io.BufferedWriter(_Lossy(stream.fileno(), "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(out, stream.encoding, "backslashreplace", line_buffering=True))


def print_at_once(text: bytes) -> None:
    """Print where the standard output takes that now; a handler of a signal may do so whoever holds `sys.stdout`."""
    with contextlib.suppress(OSError):
        if _is_ready(1, 0.0):
            os.write(1, text)


class _Lossy(io.FileIO):
    """Once its reader has read nothing for some seconds, what it cannot take at once is lost until it reads again."""

    _patience_s = _PATIENCE_S

    def write(self, data: Any) -> int:
        """Write what can be written."""
        left = memoryview(data).cast("B")
        size = left.nbytes
        with contextlib.suppress(OSError):
            while left:
                if not _is_ready(self.fileno(), self._patience_s):
                    self._patience_s = 0.0
                    break
                self._patience_s = _PATIENCE_S
                left = left[super().write(left[: select.PIPE_BUF]) or left.nbytes :]
        return size


def _is_ready(descriptor: int, timeout_s: float) -> bool:
    """Return whether PIPE_BUF bytes can be written without a wait (pipe(7)), or an error be had, by then."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000))
