"""Shows on this console what models print in the processes that Ray starts."""

import contextlib
import fcntl
import os
import select
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from deployments.lane.owned_file import OwnedFile
from deployments.log.line_format import for_terminal
from deployments.replica.model_output import CONSOLE_VARIABLE

_PIPE_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 16


class ConsolePipe:
    """A named pipe, found by its name in the environment of the processes started after this; a thread reads it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """Make the pipe, and have each line shown.

        Raises:
            OSError: there can be no pipe in the folder for temporary files.
        """
        self._show = show
        self._file = OwnedFile(Path(tempfile.gettempdir()))
        try:
            os.mkfifo(self._file.companion, 0o600)
            # Open for writing too, so that reading does not end with the last writer.
            self._pipe = os.open(self._file.companion, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            self._file.close()
            raise
        with contextlib.suppress(OSError):  # a user has a limit on such memory
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.environ[CONSOLE_VARIABLE] = self._file.companion
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._read, name="console", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        unfinished = b""
        while True:
            ready, _, _ = select.select([self._pipe, self._stop_read], [], [])
            if self._pipe not in ready:
                return
            with contextlib.suppress(BlockingIOError):
                *lines, unfinished = (unfinished + os.read(self._pipe, _PIPE_BYTES)).split(b"\n")
                unfinished = unfinished[:_MAX_LINE_BYTES]
                for line in lines:
                    self._show(for_terminal(line.decode(errors="replace")))

    def close(self) -> None:
        """Show what has arrived, and remove the pipe."""
        os.environ.pop(CONSOLE_VARIABLE, None)
        os.write(self._stop_write, b".")
        self._thread.join()
        for descriptor in (self._pipe, self._stop_read, self._stop_write):
            os.close(descriptor)
        self._file.close()
