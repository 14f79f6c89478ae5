"""The file of `--log-file`: every process of a node appends whole lines to it."""

import contextlib
import logging
import os
from typing import Final

_MODE: Final = 0o640
# A pipe that nobody reads, or not quickly enough, holds nothing up.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


class LogFile(logging.Handler):
    """Appends a line for each record; a file that was moved away or removed is made anew.

    What cannot be written, as the disk is full or the file may not be opened, is left out of this file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._descriptor = -1
        self._file = (0, 0)
        self._cut = False
        """Whether the last line stands in the file without its end."""

    def emit(self, record: logging.LogRecord) -> None:
        """Append the line in one piece: other processes write to the file too."""
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
            self._open()
            data = b"\n" + line if self._cut else line
            self._cut = os.write(self._descriptor, data) < len(data)
        except OSError:
            pass
        except Exception:
            self.handleError(record)

    def _open(self) -> None:
        """Have the file open that is at the path now.

        Raises:
            OSError: it cannot be opened.
        """
        try:
            status = os.stat(self.path)
            if self._descriptor >= 0 and (status.st_dev, status.st_ino) == self._file:
                return
        except FileNotFoundError:
            pass
        self._close()
        self._descriptor = os.open(self.path, _FLAGS, _MODE)
        self._cut = False
        status = os.fstat(self._descriptor)
        self._file = (status.st_dev, status.st_ino)

    def _close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Close the file."""
        with self.lock or contextlib.nullcontext():
            self._close()
        super().close()


def check_log_file(path: str) -> None:
    """Raise OSError unless lines can be appended to a file, which is made if it is not there."""
    os.close(os.open(path, _FLAGS, _MODE))
