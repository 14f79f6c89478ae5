"""`pb_utils.Logger`: a model's log lines, in Python's logging."""

import logging

from deployments.backends.python.bls import parents_here
from deployments.backends.python.model_module import module_at_work

LOGGER = "eagleray.python_model"
_LOG = logging.getLogger(LOGGER)
_CALLER = 2
"""`stacklevel` that names the line of the model, not the one in this file."""


class Logger:
    """Static methods and levels, used as `pb_utils.Logger.log_info(...)`."""

    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    VERBOSE = logging.DEBUG

    @staticmethod
    def log(message: str, level: int = logging.INFO) -> None:
        """Log at one of the levels of this class."""
        _LOG.log(level, "%s", message, stacklevel=_CALLER)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        _LOG.info("%s", message, stacklevel=_CALLER)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        _LOG.warning("%s", message, stacklevel=_CALLER)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        _LOG.error("%s", message, stacklevel=_CALLER)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level DEBUG, Python's name for Triton's verbose."""
        _LOG.debug("%s", message, stacklevel=_CALLER)


def _say_whose(record: logging.LogRecord) -> bool:
    """Add to a record of which model it is, unless a process of the model has said so."""
    module = None if hasattr(record, "model") else module_at_work()
    if module is not None:
        vars(record).update(module.whose(parents_here.get()))
    return True


_LOG.addFilter(_say_whose)
