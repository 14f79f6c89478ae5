"""What Python models print and log, sent to the console of `eagleray serve` with the model's name in front.

The console is a named pipe that `eagleray serve` reads. A line that does not fit into it at once is dropped and
counted: no request waits for a terminal. Ray's own files of the process hold every line either way.
"""

import builtins
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final, TextIO

from deployments.backends.python.logger import LOGGER, whose_at_work
from deployments.log.line_format import ids_of_trace, with_trace

CONSOLE_VARIABLE: Final = "_EAGLERAY_CONSOLE_PIPE"
"""Names the pipe, in processes that `eagleray serve` started."""
_MAX_LINE_BYTES: Final = 4096
"""PIPE_BUF of Linux: what is not longer arrives whole."""


class Console:
    """Writes whole lines to the pipe, from any thread, and never waits."""

    def __init__(self, path: str) -> None:
        """Open the pipe.

        Raises:
            OSError: nobody reads it, or it is not there.
        """
        self._pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._dropped_count = 0

    def write(self, model: str, line: str) -> None:
        """Send a line of a model; drop it when there is no room, or nobody reads."""
        prefix = f"[{model}] "
        if self._dropped_count:
            prefix = f"[{model}] ({self._dropped_count} lines before this are in Ray's logs only) "
        data = (prefix + line).encode(errors="replace")[: _MAX_LINE_BYTES - 1] + b"\n"
        try:
            os.write(self._pipe, data)
            self._dropped_count = 0
        except OSError:
            self._dropped_count += 1


class ModelStream:
    """Stands for `sys.stdout` or `sys.stderr`: passes everything on, and the lines of models to the console too."""

    def __init__(self, stream: TextIO, console: Console) -> None:
        self._stream = stream
        self._console = console
        self._unfinished = threading.local()

    def write(self, text: str) -> int:
        """Write to the stream; the model whose code calls this is the one that printed."""
        written = self._stream.write(text)
        self.show(text)
        return written

    def show(self, text: str) -> None:
        """Send the lines that end in this text to the console, if a model wrote it."""
        whose = whose_at_work()
        if whose:
            *lines, rest = (getattr(self._unfinished, "text", "") + text).split("\n")
            for line in lines:
                self._console.write(whose["model"], line + ids_of_trace(whose))
            self._unfinished.text = rest[:_MAX_LINE_BYTES]

    def writelines(self, lines: Any) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ConsoleHandler(logging.Handler):
    """Sends what models log through `pb_utils.Logger` to the console."""

    def __init__(self, console: Console, is_on: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__()
        self._console = console
        self._is_on = is_on

    def emit(self, record: logging.LogRecord) -> None:
        """Send the lines of a message that is logged, its level in front unless it is information."""
        model = getattr(record, "model", None)
        if not model or not self._is_on(record):
            return
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        for line in with_trace(record).split("\n"):
            self._console.write(model, level + line)


def show_model_output(is_on: Callable[[logging.LogRecord], bool] | None = None) -> None:
    """Send what models print and log to the console, if this process has one; have `print` write what it should.

    `is_on` says which records are logged. The process of a model has none: the replica, which hears of its records and
    of what it prints, logs them.
    """
    console = None if isinstance(sys.stdout, ModelStream) else _console()
    if console is not None:
        sys.stdout = ModelStream(sys.stdout, console)
        sys.stderr = ModelStream(sys.stderr, console)
        if is_on is not None:
            logging.getLogger(LOGGER).addHandler(ConsoleHandler(console, is_on))
    if is_on is None or isinstance(builtins.print, FunctionType):
        builtins.print = partial(_print_to_serves_log, (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))


def _console() -> Console | None:
    path = os.environ.get(CONSOLE_VARIABLE)
    try:
        return Console(path) if path else None
    except OSError as error:
        logging.getLogger(__name__).warning("what models print is not shown on the console: %s", error)
        return None


def _print_to_serves_log(
    streams: tuple[Any, ...],
    *objects: Any,
    sep: str | None = None,
    end: str | None = None,
    file: Any = None,
    **flush: Any,
) -> None:
    """Do what Serve's own `print` should: what goes to one of `streams` is written to the replica's log, and shown too.

    Serve's logs what is printed while `sys.stdout` is redirected, and writes a tuple into any other file.
    """
    text = (" " if sep is None else sep).join(map(str, objects)) + ("\n" if end is None else end)
    target = sys.stdout if file is None else file
    if target is None or any(target is stream for stream in streams):
        logging.getLogger("ray.serve").info("%s", text.rstrip("\n"), stacklevel=2, extra=whose_at_work())
        if isinstance(target, ModelStream):
            target.show(text)
    else:
        target.write(text)
        if flush.get("flush"):
            target.flush()
