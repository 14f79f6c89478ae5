from typing import Any
from weakref import WeakKeyDictionary

import pytest

from app.service.trace_settings import TraceSettings, with_absolute_file
from app.trace.sampler import Sampling
from protocol.errors import InvalidArgument, Unsupported
from protocol.trace import CONTEXT, TENSORS, TIMESTAMPS

DEFAULTS = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
STATES: WeakKeyDictionary[TraceSettings, dict[str, Any]] = WeakKeyDictionary()


def update(settings: TraceSettings, changes: dict[str, Any], *model: str) -> None:
    """Change settings as an ingress does."""
    state = STATES.setdefault(settings, {})
    state |= settings.read(changes, *model)
    settings.take({key: value for key, value in state.items() if value is not None})


def test_settings_of_a_model_win_until_they_are_cleared() -> None:
    trace = TraceSettings(["triton,file=/tmp/trace"])
    update(trace, {"trace_rate": "5"}, "m")
    update(trace, {"trace_level": ["TENSORS", "TIMESTAMPS"], "trace_rate": "7"})
    assert trace.get("m") == DEFAULTS | {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "5",
        "trace_file": "/tmp/trace",
    }
    assert trace.get()["trace_rate"] == "7"
    update(trace, {"trace_rate": None}, "m")
    assert trace.get("m")["trace_rate"] == "7"


def test_clearing_the_servers_goes_back_to_the_start() -> None:
    trace = TraceSettings(["rate=5", "level=TIMESTAMPS", "triton,file=/tmp/trace", "triton,log-frequency=3"])
    update(trace, {"trace_rate": 9, "trace_level": "OFF"})
    assert trace.get()["trace_rate"] == "9"
    update(trace, {"trace_rate": None, "trace_level": None})
    assert trace.get() == DEFAULTS | {
        "trace_rate": "5",
        "trace_level": ["TIMESTAMPS"],
        "trace_file": "/tmp/trace",
        "log_frequency": "3",
    }


def test_opentelemetry_shows_its_own_settings() -> None:
    trace = TraceSettings(
        [
            "mode=opentelemetry",
            "opentelemetry,url=http://localhost:4318",
            "opentelemetry,resource=a=b",
            "opentelemetry,resource=c=d=e",
        ]
    )
    settings = trace.get()
    assert settings["url"] == "http://localhost:4318"
    assert settings["resource"] == "a=b,c=d=e"
    assert trace.resource == {"a": "b", "c": "d=e"}
    assert "trace_file" not in settings and "log_frequency" not in settings
    assert [settings[f"bsp_{name}"] for name in ("max_queue_size", "schedule_delay", "max_export_batch_size")] == [
        "2048",
        "5000",
        "512",
    ]


def test_a_small_queue_is_sent_at_once() -> None:
    trace = TraceSettings(["opentelemetry,bsp_max_queue_size=1", "opentelemetry,bsp_schedule_delay=0"])
    assert trace.exporter == {
        "bsp_max_queue_size": "1",
        "bsp_schedule_delay": "0",
        "bsp_max_export_batch_size": "1",
    }


def test_sizes_of_a_queue_may_come_in_any_order() -> None:
    flags = ["opentelemetry,bsp_max_export_batch_size=3000", "opentelemetry,bsp_max_queue_size=4000"]
    assert TraceSettings(flags).exporter == TraceSettings(reversed(flags)).exporter


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (("level=timestamps",), ["TIMESTAMPS"]),
        (("level=MIN",), ["TIMESTAMPS"]),
        (("level=max", "level=Tensors"), ["TIMESTAMPS", "TENSORS"]),
        (("level=true",), ["TIMESTAMPS"]),
        (("level=False",), ["OFF"]),
    ],
)
def test_levels_at_the_start_are_written_as_for_triton(flags: tuple[str, ...], levels: list[str]) -> None:
    trace = TraceSettings([*flags, "Triton,file=/tmp/trace", "mode=TRITON"])
    assert (trace.get()["trace_level"], trace.file, trace.get()["trace_mode"]) == (levels, "/tmp/trace", "triton")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rate is no number": ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
    "rate has two signs": ({"trace_rate": "+-5"}, "Unable to parse 'trace_rate', got: +-5"),
    "rate out of range": (
        {"trace_rate": "4294967296"},
        "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
    ),
    "negative rate": (
        {"trace_rate": "-1"},
        "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1",
    ),
    "rate of a wrong type": (
        {"trace_rate": True},
        "Unable to parse 'trace_rate': attempt to access JSON non-string as string",
    ),
    "count": ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    "count is no number": ({"trace_count": ""}, "Unable to parse 'trace_count', got: "),
    "frequency": ({"log_frequency": "1.5"}, "Unable to parse 'log_frequency', got: 1.5"),
    "off and another": ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
    "unknown level": ({"trace_level": ["MAX"]}, "Unable to parse 'trace_level', got: MAX"),
    "level of a wrong type": (
        {"trace_level": 3},
        "Unable to parse 'trace_level': attempt to access JSON non-array as array",
    ),
    "level in the array": (
        {"trace_level": [3]},
        "Unable to parse 'trace_level': attempt to access JSON non-string as string",
    ),
}


@pytest.mark.parametrize(("changes", "text"), BAD.values(), ids=BAD.keys())
def test_a_bad_value_changes_nothing(changes: dict[str, Any], text: str) -> None:
    trace = TraceSettings()
    with pytest.raises(InvalidArgument) as error:
        update(trace, {"trace_rate": "3", **changes})
    assert error.value.message == text
    assert trace.get() == DEFAULTS


def test_a_level_without_a_file_to_write_to_is_refused() -> None:
    trace = TraceSettings()
    with pytest.raises(InvalidArgument, match="Attempting to set invalid trace setting :trace file name is not given"):
        update(trace, {"trace_level": ["TIMESTAMPS"]})
    update(trace, {"trace_level": ["OFF"], "trace_rate": "5"})
    update(TraceSettings(["mode=opentelemetry"]), {"trace_level": ["TIMESTAMPS"]})


def test_sampling_is_what_holds_for_a_model() -> None:
    trace = TraceSettings(["level=TIMESTAMPS", "level=TENSORS", "rate=5", "count=7", "triton,file=/t"])
    assert trace.sampling() == trace.sampling("m") == Sampling(TIMESTAMPS | TENSORS, 5, 7, 0)
    update(trace, {"trace_rate": "1", "log_frequency": "2", "trace_level": ["OFF"]}, "m")
    assert trace.sampling("m") == Sampling(0, 1, 7, 2)
    assert trace.models == ["m"]
    exported = TraceSettings(["level=TENSORS", "mode=opentelemetry"])
    assert exported.sampling().flags == TIMESTAMPS | CONTEXT


def test_the_file_is_seen_from_where_the_command_is_run() -> None:
    assert with_absolute_file("triton,file=traces.json", "/home/me") == "triton,file=/home/me/traces.json"
    assert with_absolute_file("triton,file=/tmp/t", "/home/me") == "triton,file=/tmp/t"
    assert with_absolute_file("triton,log-frequency=5", "/home/me") == "triton,log-frequency=5"
    with pytest.raises(ValueError, match="must be an absolute path"):
        TraceSettings(["triton,file=traces.json"])


def test_the_file_cannot_be_changed() -> None:
    trace = TraceSettings()
    with pytest.raises(Unsupported, match="trace file location can not be updated through network protocol"):
        update(trace, {"trace_file": "/etc/passwd"})
    update(trace, {"trace_file": None})


@pytest.mark.parametrize(
    "flag", ["rate", "rate=x", "speed=3", "x,rate=3", "mode=x", "level=MOST", "count=-2", "triton,rate=3"]
)
def test_a_malformed_flag_is_refused(flag: str) -> None:
    with pytest.raises(ValueError):
        TraceSettings([flag])


def test_what_clients_have_set_in_a_newer_version_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    trace = TraceSettings(["triton,file=/tmp/trace"])
    newer = {"trace:trace_level:": ["PROFILE"], "trace:sampler:": "parent", "trace:trace_rate:m": "5"}
    for _ in range(2):
        trace.take(newer)
        assert trace.get("m") == DEFAULTS | {"trace_file": "/tmp/trace", "trace_rate": "5"}
        assert trace.sampling("m").rate == 5
    assert len(caplog.records) == 2, "once for each"
