"""Triton's log settings: those of the start, and over them what clients have set."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from deployments.log.log_options import DEFAULT_LOG, FORMATS, LogOptions
from protocol.errors import Unavailable, Unsupported
from protocol.json_document import as_boolean, as_unsigned

_SWITCHES: Final = ("log_info", "log_warning", "log_error")
_SLOW: Final = "log_slow_requests_ms"
_NUMBERS: Final = ("log_verbose_level", _SLOW)
_PREFIX: Final = "log:"


class LogSettings:
    """The settings as clients see them; `changed` makes them hold on this node."""

    def __init__(
        self, at_start: LogOptions = DEFAULT_LOG, changed: Callable[[LogOptions], None] = lambda _: None
    ) -> None:
        self._at_start = at_start
        self._changed = changed
        self._options = at_start
        self._taken = False

    def get(self) -> dict[str, Any]:
        """Return all settings; one that Triton does not know only while it says something."""
        settings = asdict(self._options)
        if not settings[_SLOW]:
            del settings[_SLOW]
        return settings

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
        for name in _SWITCHES:
            if name in changes:
                read[name] = as_boolean(changes[name], name)
        for name in _NUMBERS:
            if name in changes:
                read[name] = as_unsigned(changes[name], name)
        if "log_format" in changes:
            if changes["log_format"] not in FORMATS:
                raise Unavailable(f"invalid argument for --log_format, got: {changes['log_format']}")
            read["log_format"] = changes["log_format"]
        return {_PREFIX + name: value for name, value in read.items()}

    def take(self, state: Mapping[str, Any]) -> None:
        """Make what clients have set be this, and nothing else."""
        own = {key.removeprefix(_PREFIX): value for key, value in state.items() if key.startswith(_PREFIX)}
        options = replace(self._at_start, **own)
        # The first time in any case: what an ingress of before has left on the node may be something else.
        if options != self._options or not self._taken:
            self._options = options
            self._taken = True
            self._changed(options)
