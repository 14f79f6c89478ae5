"""`pb_utils.Logger`: a model's log lines, in Python's logging."""

import logging
from pathlib import Path

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
    """Add to a record of which model and version it is, and of which request, if one runs alone."""
    module = None if hasattr(record, "model") else module_at_work()
    if module is not None:
        version = Path(module.version_path).name
        record.model = module.model_name
        record.version = int(version) if version.isdecimal() else None
        record.request_id = module.requests[0].id if len(module.requests) == 1 else ""
    return True


_LOG.addFilter(_say_whose)
