"""What the process of a Python model logs: told to the replica, whose log file it stands in."""

import logging
from collections.abc import Callable
from typing import Final

from deployments.backends.python.logger import LOGGER

_MAX_CHARACTERS: Final = 12_000
"""Of a message with its traceback; the beginning and the end of a longer one are kept."""
_FORMATTER = logging.Formatter()

Tell = Callable[..., None]


class _Forwarder(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the replica, the traceback as text."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + _FORMATTER.formatException(record.exc_info)
        if len(text) > _MAX_CHARACTERS:
            text = f"{text[: _MAX_CHARACTERS // 2]}\n…\n{text[-_MAX_CHARACTERS // 2 :]}"
        try:
            self._tell("log", record.name, record.levelno, record.pathname, record.lineno, record.funcName, text)
        except OSError:
            pass  # the replica is gone, and so is this process


def forward_log(tell: Tell) -> None:
    """Have our own loggers and the models' `pb_utils.Logger` tell the replica."""
    handler = _Forwarder(tell)
    for name in ("deployments", "eagleray"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


def log_here(name: str, level: int, path: str, line: int, function: str, text: str) -> None:
    """Log in the replica what a model's process told.

    The console has heard it from that process; so the handlers of `LOGGER`, which write there, are passed over.
    """
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, path, line, "%s", (text,), None, function)
    (logger.parent if name == LOGGER and logger.parent else logger).handle(record)
