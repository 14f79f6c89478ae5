import logging
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from app.service.log_settings import LOGGERS, LogSettings
from protocol.errors import InvalidArgument, ServingError, Unavailable, Unsupported

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
STATES: WeakKeyDictionary[LogSettings, dict[str, Any]] = WeakKeyDictionary()


def update(settings: LogSettings, changes: dict[str, Any], *model: str) -> None:
    """Change settings as an ingress does."""
    state = STATES.setdefault(settings, {})
    state |= settings.read(changes, *model)
    settings.take({key: value for key, value in state.items() if value is not None})
    settings.apply()


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, logging.INFO),
        ({"log_info": False}, logging.WARNING),
        ({"log_info": False, "log_warning": False}, logging.ERROR),
        ({"log_info": False, "log_warning": False, "log_error": False}, logging.CRITICAL + 1),
        ({"log_verbose_level": 1, "log_info": False}, logging.DEBUG),
        ({"log_format": "ISO8601"}, logging.INFO),
    ],
)
def test_changes_take_effect_on_the_log(changes: dict[str, Any], level: int) -> None:
    settings = LogSettings()
    update(settings, changes)
    assert settings.get() == DEFAULTS | changes
    assert logging.getLogger("app.http").getEffectiveLevel() == level
    assert logging.getLogger("deployments.lane").getEffectiveLevel() == level


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"log_info": 1}, InvalidArgument, "Unable to parse 'log_info': attempt to access JSON non-boolean as boolean"),
        (
            {"log_verbose_level": -1},
            InvalidArgument,
            "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"log_format": "x"}, Unavailable, "invalid argument for --log_format, got: x"),
        ({"log_format": None}, Unavailable, "invalid argument for --log_format, got: None"),
        ({"log_file": "x"}, Unsupported, "log file location can not be updated through network protocol"),
    ],
)
def test_a_bad_value_changes_nothing(changes: dict[str, Any], kind: type[ServingError], text: str) -> None:
    settings = LogSettings()
    with pytest.raises(kind) as error:
        update(settings, {"log_error": False, **changes})
    assert error.value.message == text
    assert settings.get() == DEFAULTS
