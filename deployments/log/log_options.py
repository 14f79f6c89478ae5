"""What is logged, and in which form: Triton's log settings, under its names."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from protocol.by_name import ByName

LEVELS: Final = ("log_info", "log_warning", "log_error", "log_verbose_level")
FORMATS: Final = ("default", "ISO8601", "json")
_NOTHING: Final = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True)
class LogOptions(ByName):
    """The settings of a log; `log_file` is an absolute path, "" for none.

    Requests that take longer than `log_slow_requests_ms` are logged; 0: none. `models` has the levels (`LEVELS`) that
    are others for single models.
    """

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"
    log_slow_requests_ms: int = 0
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, model: str | None) -> "LogOptions":
        """Return what holds for the records of a model."""
        own = self.models.get(model) if model else None
        return replace(self, **own) if own else self

    def is_on(self, level: int) -> bool:
        """Whether a record of a level of Python's is logged; the switches do not depend on each other."""
        if level >= logging.ERROR:
            return self.log_error
        if level >= logging.WARNING:
            return self.log_warning
        if level >= logging.INFO:
            return self.log_info
        return self.log_verbose_level > 0

    @property
    def threshold(self) -> int:
        """The lowest of Python's levels that is on, for anything."""
        every = [self, *map(self.of, self.models)]
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        return next((level for level in levels if any(each.is_on(level) for each in every)), _NOTHING)


DEFAULT_LOG: Final = LogOptions()
