from typing import Any

import pytest

from app.service.log_settings import LogSettings
from deployments.log.log_options import LogOptions
from protocol.errors import InvalidArgument, ServingError, Unavailable, Unsupported

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


class Ingress:
    """What clients have set, as the controller keeps it, and what the ingress made of it."""

    def __init__(self, at_start: LogOptions | None = None) -> None:
        self.rows: dict[str, Any] = {}
        self.held: list[LogOptions] = []
        self.settings = LogSettings(at_start or LogOptions(), self.held.append)

    def update(self, changes: dict[str, Any], model: str = "") -> None:
        rows = self.rows | self.settings.read(changes, model)
        self.rows = {row: value for row, value in rows.items() if value is not None}
        self.settings.take(self.rows)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"log_info": False, "log_warning": False, "log_error": False},
        {"log_verbose_level": 1},
        {"log_format": "ISO8601"},
        {"log_format": "json"},
        {"log_slow_requests_ms": 250},
    ],
    ids=str,
)
def test_changes_hold_and_are_told(changes: dict[str, Any]) -> None:
    ingress = Ingress()
    ingress.update(changes)
    assert ingress.settings.get() == DEFAULTS | changes
    assert ingress.held[-1] == LogOptions(**changes)


def test_a_setting_of_ours_is_shown_while_it_says_something() -> None:
    ingress = Ingress()
    ingress.update({"log_slow_requests_ms": 250})
    ingress.update({"log_slow_requests_ms": 0})
    assert ingress.settings.get() == DEFAULTS


def test_levels_of_a_model_lie_over_the_servers() -> None:
    ingress = Ingress()
    ingress.update({"log_verbose_level": 1, "log_warning": False}, "a:b")
    ingress.update({"log_info": False})
    levels = {"log_info": False, "log_warning": False, "log_error": True, "log_verbose_level": 1}
    assert ingress.settings.get("a:b") == levels
    assert ingress.settings.get("other") == levels | {"log_warning": True, "log_verbose_level": 0}
    assert ingress.settings.get() == DEFAULTS | {"log_info": False}
    ingress.update({"log_verbose_level": None}, "a:b")
    assert ingress.settings.get("a:b") == levels | {"log_verbose_level": 0}
    for wrong in ({"log_format": "json"}, {"log_file": "x"}, {"log_slow_requests_ms": 5}):
        with pytest.raises(Unsupported, match="can not be set for a single model"):
            ingress.update(wrong, "a:b")
    with pytest.raises(InvalidArgument, match="Unable to parse 'log_info'"):
        ingress.update({"log_info": 1}, "a:b")


def test_only_changes_are_applied_but_for_the_first_time() -> None:
    ingress = Ingress(LogOptions(log_file="/log", log_info=False))
    for _ in range(2):
        ingress.update({})
    ingress.update({"log_info": True})
    ingress.settings.take({})
    assert [each.log_info for each in ingress.held] == [False, True, False]
    assert {each.log_file for each in ingress.held} == {"/log"}


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"log_info": 1}, InvalidArgument, "Unable to parse 'log_info': attempt to access JSON non-boolean as boolean"),
        (
            {"log_verbose_level": -1},
            InvalidArgument,
            "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"log_verbose_level": 1 << 32},
            InvalidArgument,
            "Unable to parse 'log_verbose_level', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        ({"log_format": "x"}, Unavailable, "invalid argument for --log_format, got: x"),
        ({"log_format": None}, Unavailable, "invalid argument for --log_format, got: None"),
        ({"log_file": "x"}, Unsupported, "log file location can not be updated through network protocol"),
    ],
)
def test_a_bad_value_changes_nothing(changes: dict[str, Any], kind: type[ServingError], text: str) -> None:
    ingress = Ingress()
    with pytest.raises(kind) as error:
        ingress.update({"log_error": False, **changes})
    assert error.value.message == text
    assert ingress.settings.get() == DEFAULTS


def test_what_clients_have_set_in_a_newer_version_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    held: list[LogOptions] = []
    settings = LogSettings(changed=held.append)
    for verbose in (1, 2):
        settings.take({"log:log_colours:": True, "log:log_colours:m": True, "log:log_verbose_level:": verbose})
    assert [options.log_verbose_level for options in held] == [1, 2]
    assert len(caplog.records) == 1
