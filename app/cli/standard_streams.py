"""The standard streams of a command, whatever it was started with, and whoever reads what it prints."""

import io
import os
import sys
from typing import Any, Final

_STREAMS: Final = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))


def open_streams() -> None:
    """Have all three be there, and print what their encoding has no letters for in escapes."""
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:  # it was closed, and its number is the next that is given away
            setattr(sys, name, os.fdopen(os.open(os.devnull, mode), "r" if mode == os.O_RDONLY else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def outlive_readers() -> None:
    """Have what is printed from now on be lost when its reader has gone, or the disk is full: a server goes on."""
    out = io.BufferedWriter(_Lossy(sys.stdout.fileno(), "w", closefd=False))
    sys.stdout = io.TextIOWrapper(out, sys.stdout.encoding, "backslashreplace", line_buffering=True)


class _Lossy(io.FileIO):
    def write(self, data: Any) -> int:
        """Write what can be written."""
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError:
            return size
