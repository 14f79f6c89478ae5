"""Triton's log settings: those of the start, and over them what clients have set."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from deployments.log.log_options import DEFAULT_LOG, FORMATS, LEVELS, LogOptions
from protocol.errors import InvalidArgument, Unavailable, Unsupported
from protocol.json_document import MAX_UINT32, as_boolean, as_unsigned

logger = logging.getLogger(__name__)

_SWITCHES: Final = ("log_info", "log_warning", "log_error")
_SLOW: Final = "log_slow_requests_ms"
_NUMBERS: Final = ("log_verbose_level", _SLOW)
_SETTABLE: Final = (*_SWITCHES, *_NUMBERS, "log_format")
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
        self._unknown: set[str] = set()

    def get(self, model: str = "") -> dict[str, Any]:
        """Return all settings, or the levels of a model; one that Triton does not know only while it says something."""
        settings = asdict(self._options.of(model))
        if model:
            return {name: settings[name] for name in LEVELS}
        del settings["models"]
        if not settings[_SLOW]:
            del settings[_SLOW]
        return settings

    def read(self, changes: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """Return a client's changes as `take` wants them; None puts a level of a model back to the server's.

        Raises:
            InvalidArgument: a value is not what it should be.
            Unavailable: there is no such format (Triton's code for it).
            Unsupported: the file cannot be changed, or a setting that is no level for a model.
        """
        if model:
            return self._read_of_model(changes, model)
        if "log_file" in changes:
            raise Unsupported("log file location can not be updated through network protocol")
        read: dict[str, Any] = {}
        for name in _SWITCHES:
            if name in changes:
                read[name] = as_boolean(changes[name], name)
        for name in _NUMBERS:
            if name in changes:
                read[name] = _number(changes[name], name)
        if "log_format" in changes:
            if changes["log_format"] not in FORMATS:
                raise Unavailable(f"invalid argument for --log_format, got: {changes['log_format']}")
            read["log_format"] = changes["log_format"]
        return {f"{_PREFIX}{name}:": value for name, value in read.items()}

    def _read_of_model(self, changes: Mapping[str, Any], model: str) -> dict[str, Any]:
        others = changes.keys() - set(LEVELS)
        if others:
            raise Unsupported(f"'{min(others)}' can not be set for a single model")
        given = {name: value for name, value in changes.items() if value is not None}
        cleared = {f"{_PREFIX}{name}:": None for name in changes.keys() - given.keys()}
        return {row + model: value for row, value in (self.read(given) | cleared).items()}

    def take(self, state: Mapping[str, Any]) -> None:
        """Make what clients have set be this, and nothing else.

        Clients may have set it in an ingress of a newer version, which knows more settings: these are left out.
        """
        of: dict[str, dict[str, Any]] = {}
        for row, value in state.items():
            if row.startswith(_PREFIX):
                name, _, model = row.removeprefix(_PREFIX).partition(":")
                if name in _SETTABLE:
                    of.setdefault(model, {})[name] = value
                elif name not in self._unknown:
                    self._unknown.add(name)
                    logger.warning("'%s', which clients have set, is no log setting of this version", name)
        options = replace(self._at_start, **of.pop("", {}), models=of)
        # The first time in any case: what an ingress of before has left on the node may be something else.
        if options != self._options or not self._taken:
            self._options = options
            self._taken = True
            self._changed(options)


def _number(value: Any, name: str) -> int:
    number = as_unsigned(value, name)
    if number > MAX_UINT32:  # gRPC's answer has no room for more
        raise InvalidArgument(f"Unable to parse '{name}', value is out of range [ 0, {MAX_UINT32} ], got: {number}")
    return number
