"""What the process of a Python model logs: told to the replica, whose log file it stands in."""

import logging
import os
import sys
from builtins import print as print_as_python_does
from collections.abc import Callable
from typing import Final

from deployments.log.line_format import about, traceback_of

_MAX_CHARACTERS: Final = 12_000
"""Of a message, and of its traceback; the beginning and the end of a longer one are kept."""

PRINTS: Final = "ray.serve"
"""The logger that has what models print, as Serve has it."""
Tell = Callable[..., None]


class _Forwarder(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell
        self._process_id = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the replica, the traceback as text.

        What a process prints that the model has forked goes where it would without us: the socket's lock may have been
        held as it was forked.
        """
        if record.name == PRINTS and os.getpid() != self._process_id:
            print_as_python_does(record.getMessage(), file=sys.__stdout__, flush=True)
            return
        place = record.pathname, record.lineno, record.funcName
        whose = [getattr(record, name, None) for name in about("")]
        texts = _bounded(record.getMessage()), _bounded(traceback_of(record))
        try:
            self._tell("log", record.name, record.levelno, *place, *texts, *whose)
        except OSError:
            pass  # the replica is gone, and so is this process


def forward_log(tell: Tell) -> None:
    """Have our own loggers, the models' `pb_utils.Logger` and Serve's, which has what they print, tell the replica."""
    handler = _Forwarder(tell)
    for name in ("deployments", "eagleray", PRINTS):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


def log_here(
    name: str,
    level: int,
    path: str,
    line: int,
    function: str,
    text: str,
    traceback: str,
    model: str | None,
    version: int | None,
    request_id: str | None,
    trace_id: str | None,
    span_id: str | None,
) -> None:
    """Log in the replica what a model's process told, where the settings hold."""
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    extra = about(model or "", version, request_id or "", trace_id or "", span_id or "")
    record = logger.makeRecord(name, level, path, line, "%s", (text,), None, function, extra)
    record.exc_text = traceback or None
    logger.handle(record)


def _bounded(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[: _MAX_CHARACTERS // 2]}\n…\n{text[-_MAX_CHARACTERS // 2 :]}"
