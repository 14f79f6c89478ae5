"""Triton's trace settings: one set for the server, and what single models have set differently.

They are validated, kept and answered as Triton does; `app.trace` goes by them.
"""

import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from app.trace.sampler import Sampling
from app.trace.span_export import DEFAULT_URL
from protocol.errors import InvalidArgument, Unsupported
from protocol.json_document import MAX_UINT32, NON_ARRAY, NON_STRING, unparsable
from protocol.trace import CONTEXT, TENSORS, TIMESTAMPS

logger = logging.getLogger(__name__)

EXPORTER_PACKAGE: Final = "opentelemetry-exporter-otlp-proto-http"
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http"
_INT32_MAX: Final = 2**31 - 1
_FLAGS: Final = {"level": "trace_level", "rate": "trace_rate", "count": "trace_count", "mode": "trace_mode"}
_EXPORTER_DEFAULTS: Final = {
    "url": DEFAULT_URL,
    "bsp_max_queue_size": "2048",
    "bsp_schedule_delay": "5000",
    "bsp_max_export_batch_size": "512",
}
_TRITON_FLAGS: Final = {"file": "trace_file", "log-frequency": "log_frequency"}
_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")
SINGLE_VALUES: Final = ("trace_file", *_NUMBERS)
"""What has one value, although messages of gRPC have room for several."""
_PREFIX: Final = "trace:"
_BEGUN: Final = "begun"
"""Which setting of the count it is: traces are counted anew when it is set again, as the same too."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,100}")
_LEVELS_OF_FLAGS: Final = {
    "off": "OFF",
    "false": "OFF",
    **dict.fromkeys(("timestamps", "true", "on", "min", "max"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
"""What `--trace-config level=…` may say, in any case."""
_LEVELS: Final = {"OFF": 0, "TIMESTAMPS": TIMESTAMPS, "TENSORS": TENSORS}
_NO_FILE: Final = "Attempting to set invalid trace setting :trace file name is not given"

Value = str | list[str]


class TraceSettings:
    """The settings of the server: those of the start, over them what clients have set, and over those a model's.

    Args:
        flags: as `--trace-config` gives them: `<key>=<value>` or `<mode>,<key>=<value>`.

    Raises:
        ValueError: a flag is malformed.
    """

    def __init__(self, flags: Iterable[str] = ()) -> None:
        self._at_start: dict[str, Value] = {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": "",
            "trace_mode": "triton",
        }
        self._exporter: dict[str, str] = {}
        self._resource: dict[str, str] = {}
        self._read_flags(flags)
        self._set: dict[str, dict[str, Value]] = {}
        self._unknown: set[str] = set()

    @property
    def file(self) -> str:
        """The file of traces, "" without one."""
        return str(self._at_start["trace_file"])

    @property
    def exports(self) -> bool:
        """Whether traces go to OpenTelemetry, and into no file."""
        return self._at_start["trace_mode"] == "opentelemetry"

    @property
    def exporter(self) -> Mapping[str, str]:
        """The settings of OpenTelemetry's that were given at the start; a small queue is sent at once."""
        queue_size = self._exporter.get("bsp_max_queue_size", "")
        if queue_size and int(queue_size) < int(_EXPORTER_DEFAULTS["bsp_max_export_batch_size"]):
            return {"bsp_max_export_batch_size": queue_size} | self._exporter
        return self._exporter

    @property
    def resource(self) -> Mapping[str, str]:
        """The attributes of OpenTelemetry's resource."""
        return self._resource

    @property
    def models(self) -> list[str]:
        """The models that have settings of their own."""
        return [model for model in self._set if model]

    def sampling(self, model: str = "") -> Sampling:
        """Return by which settings requests to a model, or to those without settings of their own, are traced."""
        settings = self._merged(model)
        flags = 0
        for level in settings["trace_level"]:
            flags |= _LEVELS[level]
        if flags and self.exports:
            flags = TIMESTAMPS | CONTEXT
        rate, count, log_frequency = (int(str(settings[name])) for name in _NUMBERS)
        return Sampling(flags, rate, count, log_frequency, str(settings.get(_BEGUN, "")))

    def _merged(self, model: str) -> dict[str, Value]:
        return {**self._at_start, **self._set.get("", {}), **self._set.get(model, {})}

    def get(self, model: str = "") -> dict[str, Value]:
        """Return all settings of the server, or those that hold for a model."""
        settings = self._merged(model)
        settings.pop(_BEGUN, None)
        if settings["trace_mode"] == "opentelemetry":
            del settings["log_frequency"], settings["trace_file"]
            settings |= _EXPORTER_DEFAULTS | dict(self.exporter)
        return settings

    def read(self, changes: Mapping[str, Any], model: str = "") -> dict[str, Value | None]:
        """Return a client's changes as `take` wants them; None undoes what clients had set there before.

        Raises:
            InvalidArgument: a value is not what it should be, or nothing says where traces are to be written.
            Unsupported: the file cannot be changed.
        """
        if changes.get("trace_file") is not None:
            raise Unsupported("trace file location can not be updated through network protocol")
        read = {
            key: None if changes[key] is None else reader(changes[key])
            for key, reader in _READERS.items()
            if key in changes
        }
        if read.get("trace_level") not in (None, ["OFF"]) and not self.file and not self.exports:
            raise InvalidArgument(_NO_FILE)
        if "trace_count" in read:
            read[_BEGUN] = None if read["trace_count"] is None else secrets.token_hex(4)
        return {f"{_PREFIX}{key}:{model}": value for key, value in read.items()}

    def take(self, state: Mapping[str, Any]) -> None:
        """Make what clients have set be this, and nothing else.

        Clients may have set it in an ingress of a newer version; what this one would have refused is left out.
        """
        self._set = {}
        for name, value in state.items():
            if name.startswith(_PREFIX):
                key, _, model = name.removeprefix(_PREFIX).partition(":")
                if key == _BEGUN or self._can_be(key, value):
                    self._set.setdefault(model, {})[key] = value

    def _can_be(self, key: str, value: Any) -> bool:
        try:
            if key in _READERS:
                _READERS[key](value)
                return True
        except InvalidArgument:
            pass
        if key not in self._unknown:
            self._unknown.add(key)
            logger.warning("'%s' of %.64r, which clients have set, is no trace setting of this version", key, value)
        return False

    def _read_flags(self, flags: Iterable[str]) -> None:
        levels: list[str] = []
        for flag in flags:
            name, equals, value = flag.partition("=")
            mode, _, key = name.rpartition(",")
            mode = mode.lower()
            if not equals or mode not in ("", "triton", "opentelemetry"):
                raise ValueError("expected <key>=<value> or <mode>,<key>=<value>")
            if mode == "opentelemetry":
                self._read_exporter(key, value)
            elif (known := (_TRITON_FLAGS if mode else _FLAGS).get(key)) is None:
                raise ValueError(f"unknown trace setting '{name}'")
            elif known == "trace_level":
                levels.append(_LEVELS_OF_FLAGS.get(value.lower(), value))
            else:
                self._at_start[known] = _checked_flag(known, value.lower() if known == "trace_mode" else value)
        sizes = _EXPORTER_DEFAULTS | dict(self.exporter)
        if int(sizes["bsp_max_queue_size"]) < int(sizes["bsp_max_export_batch_size"]):
            raise ValueError("opentelemetry,bsp_max_export_batch_size must not be above bsp_max_queue_size")
        if levels:
            try:
                self._at_start["trace_level"] = _levels(levels)
            except InvalidArgument as error:
                raise ValueError(error.message) from None

    def _read_exporter(self, key: str, value: str) -> None:
        if key == "resource":
            name, equals, text = value.partition("=")
            if not equals or not name:
                raise ValueError("expected opentelemetry,resource=<key>=<value>")
            self._resource[name] = text
            value = ",".join(f"{name}={text}" for name, text in self._resource.items())
        elif key not in _EXPORTER_DEFAULTS:
            raise ValueError(f"unknown trace setting 'opentelemetry,{key}'")
        elif key != "url":
            least = 0 if key == "bsp_schedule_delay" else 1
            if not value.isdecimal() or not least <= int(value) <= _INT32_MAX:
                raise ValueError(f"opentelemetry,{key} must be a whole number from {least} on, got: {value}")
        self._exporter[key] = value


def _checked_flag(key: str, value: str) -> str:
    try:
        if key in _READERS:
            return str(_READERS[key](value))
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    if key == "trace_mode" and value not in ("triton", "opentelemetry"):
        raise ValueError(f"unknown trace mode '{value}'")
    if key == "trace_file" and value and not os.path.isabs(value):
        raise ValueError(
            f"trace file '{value}' must be an absolute path: the processes that write are in other folders"
        )
    return value


def exporter_is_installed() -> bool:
    """Whether the package is there that mode `opentelemetry` needs."""
    try:
        return find_spec(_EXPORTER) is not None
    except ModuleNotFoundError:
        return False


def with_absolute_file(flag: str, folder: str) -> str:
    """Return a flag with the path of the file, if it has one, as it is seen from a folder."""
    key, equals, value = flag.partition("=")
    key = key.lower() if key.lower() == "triton,file" else key
    return f"{key}={os.path.join(folder, value)}" if key == "triton,file" and equals and value else flag


def _levels(value: Any) -> list[str]:
    levels = [value] if isinstance(value, str) else value
    if not isinstance(levels, list):
        raise unparsable("trace_level", NON_ARRAY)
    for level in levels:
        if not isinstance(level, str):
            raise unparsable("trace_level", NON_STRING)
        if level not in _LEVELS:
            raise InvalidArgument(f"Unable to parse 'trace_level', got: {level}")
    if "OFF" in levels and len(levels) > 1:
        raise InvalidArgument("Expect only one trace level 'OFF' is specified")
    return [level for level in _LEVELS if level in levels] or ["OFF"]


def _count(value: Any) -> str:
    text = _number("trace_count", value, -(2**31), _INT32_MAX)
    if int(text) < -1:
        raise InvalidArgument(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{text}")
    return text


def _number(key: str, value: Any, low: int, high: int) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = str(value) if type(value) is int else value
    if not isinstance(text, str):
        raise unparsable(key, NON_STRING)
    if not _INTEGER.fullmatch(text.strip()):
        raise InvalidArgument(f"Unable to parse '{key}', got: {text}")
    number = int(text)
    if not low <= number <= high:
        raise InvalidArgument(f"Unable to parse '{key}', value is out of range [ {low}, {high} ], got: {text}")
    return str(number)


_READERS: Final[dict[str, Callable[[Any], Value]]] = {
    "trace_level": _levels,
    "trace_rate": lambda value: _number("trace_rate", value, 0, MAX_UINT32),
    "trace_count": _count,
    "log_frequency": lambda value: _number("log_frequency", value, 0, MAX_UINT32),
}
