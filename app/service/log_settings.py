"""Triton's log settings, applied to the log of this process."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from protocol.errors import Unavailable, Unsupported
from protocol.json_document import as_boolean, as_unsigned

FORMATS: Final = ("default", "ISO8601")
LOGGERS: Final = ("app", "deployments", "repository_loader", "protocol", "eagleray")
_SWITCHES: Final = (("log_info", logging.INFO), ("log_warning", logging.WARNING), ("log_error", logging.ERROR))
_NOTHING: Final = logging.CRITICAL + 1
_PREFIX: Final = "log:"


class LogSettings:
    """The settings of this process: those of the start, and over them what clients have set.

    Python's loggers know one threshold: it is the lowest level that is on, DEBUG when `log_verbose_level` is not 0.
    """

    def __init__(
        self, verbose_level: int = 0, info: bool = True, warning: bool = True, error: bool = True, form: str = "default"
    ) -> None:
        self._at_start: dict[str, Any] = {
            "log_file": "",
            "log_info": info,
            "log_warning": warning,
            "log_error": error,
            "log_verbose_level": verbose_level,
            "log_format": form,
        }
        self._settings = dict(self._at_start)

    def get(self) -> dict[str, Any]:
        """Return all settings."""
        return dict(self._settings)

    def read(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a client's changes as `take` wants them.

        Raises:
            InvalidArgument: a value is not what it should be.
            Unavailable: there is no such format (Triton's code for it).
            Unsupported: the file cannot be changed.
        """
        if "log_file" in changes:
            raise Unsupported("log file location can not be updated through network protocol")
        read: dict[str, Any] = {}
        for name, _ in _SWITCHES:
            if name in changes:
                read[name] = as_boolean(changes[name], name)
        if "log_verbose_level" in changes:
            read["log_verbose_level"] = as_unsigned(changes["log_verbose_level"], "log_verbose_level")
        if "log_format" in changes:
            if changes["log_format"] not in FORMATS:
                raise Unavailable(f"invalid argument for --log_format, got: {changes['log_format']}")
            read["log_format"] = changes["log_format"]
        return {_PREFIX + name: value for name, value in read.items()}

    def take(self, state: Mapping[str, Any]) -> None:
        """Make what clients have set be this, and nothing else."""
        own = {key.removeprefix(_PREFIX): value for key, value in state.items() if key.startswith(_PREFIX)}
        settings = self._at_start | own
        if settings != self._settings:
            self._settings = settings
            self.apply()

    def apply(self) -> None:
        """Set the level of our loggers."""
        level = next((level for name, level in _SWITCHES if self._settings[name]), _NOTHING)
        if self._settings["log_verbose_level"]:
            level = logging.DEBUG
        for name in LOGGERS:
            logging.getLogger(name).setLevel(level)
