"""`pb_utils.Logger`: a model's log lines, in Python's logging."""

import logging
from enum import IntEnum
from typing import Any

from deployments.backends.python.bls import parents_here
from deployments.backends.python.model_module import module_at_work
from deployments.backends.python.text import text_argument

LOGGER = "eagleray.python_model"
_LOG = logging.getLogger(LOGGER)
_CALLER = 3
"""`stacklevel` that names the line of the model, not those in this file."""


class Logger:
    """Static methods and levels, used as `pb_utils.Logger.log_info(...)`. A message is text (else TypeError)."""

    class LogLevel(IntEnum):
        """The levels of `log`, as Python's logging has them."""

        INFO = logging.INFO
        WARNING = logging.WARNING
        ERROR = logging.ERROR
        VERBOSE = logging.DEBUG

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log at one of the levels of this class.

        Raises:
            TypeError: it is none.
        """
        if not isinstance(level, Logger.LogLevel):
            raise TypeError(f"'level' must be one of Logger.LogLevel, found type '{type(level)}'.")
        _log(int(level), message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        _log(logging.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        _log(logging.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        _log(logging.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level DEBUG, Python's name for Triton's verbose."""
        _log(logging.DEBUG, message)


def _log(level: int, message: str) -> None:
    _LOG.log(level, "%s", text_argument("'message'", message), stacklevel=_CALLER)


def whose_at_work() -> dict[str, Any]:
    """Return the `extra` of a record that the model at work on this thread makes, nothing if it is none."""
    module = module_at_work()
    return {} if module is None else module.whose(parents_here.get())


def _say_whose(record: logging.LogRecord) -> bool:
    """Add to a record of which model it is, unless a process of the model has said so."""
    if not hasattr(record, "model"):
        vars(record).update(whose_at_work())
    return True


_LOG.addFilter(_say_whose)
