"""Which records a process writes, where to, and as what lines."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deployments.log.line_format import MAX_CHARACTERS, about
from deployments.log.log_options import LogOptions
from deployments.log.process_log import ProcessLog
from tests.full_disk import full_disk

OURS = logging.getLogger("deployments.core.example")
LEVELS = {"V": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def log_all() -> None:
    for letter, level in LEVELS.items():
        OURS.log(level, "at %s", letter)


@pytest.mark.parametrize(
    ("options", "logged"),
    [
        (LogOptions(), "IWE"),
        (LogOptions(log_verbose_level=1), "VIWE"),
        (LogOptions(log_info=False), "WE"),
        (LogOptions(log_error=False), "IW"),
        (LogOptions(log_warning=False, log_verbose_level=2), "VIE"),
        (LogOptions(log_info=False, log_warning=False, log_error=False), ""),
    ],
    ids=str,
)
def test_each_switch_holds_by_itself(serve_log: Path, options: LogOptions, logged: str) -> None:
    log = ProcessLog(LogOptions(log_info=False))
    log.apply(options)
    log_all()
    assert "".join(line[0] for line in lines(serve_log)) == logged


def test_a_model_may_have_levels_of_its_own(serve_log: Path) -> None:
    ProcessLog(LogOptions(log_info=False, models={"loud": {"log_verbose_level": 1}, "mute": {"log_warning": False}}))
    for model in ("loud", "mute", "other"):
        for letter, level in LEVELS.items():
            OURS.log(level, "%s %s", model, letter, extra=about(model))
    log_all()
    said = [line.split('"')[1] for line in lines(serve_log)]
    assert said == ["loud V", "loud W", "loud E", "mute E", "other W", "other E", "at W", "at E"]


def test_lines_are_tritons(serve_log: Path) -> None:
    log = ProcessLog(LogOptions())
    OURS.warning('model "%s" ü', "simple")
    log.apply(LogOptions(log_format="ISO8601"))
    OURS.error("second")
    logging.getLogger("ray.serve").info("from Serve")
    first, second, third = lines(serve_log)
    place = rf"{os.getpid()} test_process_log\.py:\d+\]"
    assert re.fullmatch(rf'W\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {place} "model \\"simple\\" ü"', first)
    assert re.fullmatch(rf'\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ E {place} "second"', second)
    assert third == "INFO replica_of_serve -- from Serve"


@pytest.mark.parametrize("form", ["default", "ISO8601", "json"])
def test_times_are_utc(serve_log: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("TZ", "XXX-9")
    time.tzset()
    try:
        ProcessLog(LogOptions(log_format=form))
        record = OURS.makeRecord(OURS.name, logging.INFO, "m.py", 5, "noon", (), None)
        record.created = datetime(2026, 8, 19, 12, 0, 0, tzinfo=UTC).timestamp()
        OURS.handle(record)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "12:00:00" in serve_log.read_text()


def test_json_is_an_object_per_line_of_serve_too(serve_log: Path) -> None:
    ProcessLog(LogOptions(log_format="json"))
    OURS.info("loaded", extra=about("simple", 3, "request-7"))
    try:
        raise ValueError("of the model")
    except ValueError:
        OURS.exception("failed")
    logging.getLogger("ray.serve").info("from Serve")
    loaded, failed, serve = map(json.loads, lines(serve_log))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", loaded.pop("time"))
    assert re.fullmatch(r"test_process_log\.py:\d+", loaded.pop("source"))
    assert loaded == {
        "level": "INFO",
        "message": "loaded",
        "model": "simple",
        "version": 3,
        "request_id": "request-7",
        "process": os.getpid(),
    }
    assert "model" not in failed
    assert failed["traceback"].endswith("\nValueError: of the model")
    assert (serve["level"], serve["message"]) == ("INFO", "from Serve")


HOSTILE = "a\nE1122 00:00:00.000000 1 server.cc:1] forged\r\x1b[2J\x9b2J\x00\x7f\u2028\u202e\u2066\ud800"


@pytest.mark.parametrize("form", ["default", "ISO8601", "json"])
def test_nothing_that_a_record_holds_ends_a_line_or_steers_a_terminal(serve_log: Path, form: str) -> None:
    ProcessLog(LogOptions(log_format=form))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        OURS.exception("%s", HOSTILE, extra=about(HOSTILE, 1, HOSTILE))
    text = serve_log.read_bytes().decode()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text)
    first, *rest = text.splitlines()
    assert "a\\nE1122" in first
    assert all(line.startswith("    ") for line in rest)  # the traceback


@pytest.mark.parametrize("form", ["default", "ISO8601", "json"])
def test_no_text_makes_a_line_without_end(serve_log: Path, form: str) -> None:
    ProcessLog(LogOptions(log_format=form))
    long = "begin" + "\x00" * 5_000_000 + "end"
    try:
        raise ValueError(long)
    except ValueError:
        OURS.exception("of %s", long, extra=about("m", 1, long))
    written = serve_log.read_text()
    assert len(written) < 3 * 6 * MAX_CHARACTERS + 1000
    assert "begin" in written and "end" in written
    assert written.count(f"[{len('of ') + len(long) - MAX_CHARACTERS} characters]") == 1


def test_tracebacks_of_one_place_cannot_fill_the_log(serve_log: Path) -> None:
    ProcessLog(LogOptions(log_format="json"))

    def fail(count: int, at_s: float, place: int = 5) -> list[str]:
        before = len(lines(serve_log))
        for _ in range(count):
            record = OURS.makeRecord(
                OURS.name, logging.ERROR, "m.py", place, "it failed %d", (1,), (KeyError, KeyError(), None)
            )
            record.created = at_s
            OURS.handle(record)
        return [json.loads(line)["message"] for line in lines(serve_log)[before:]]

    assert fail(1000, 100.0) == ["it failed 1"] * 500
    assert fail(1, 100.0, place=6) == ["it failed 1"], "another place"
    assert fail(1000, 110.0) == ["it failed 1 (500 times before, without a line)"] + ["it failed 1"] * 19
    assert fail(1, 2000.0) == ["it failed 1 (980 times before, without a line)"]
    OURS.error("other lines are not bounded")
    assert lines(serve_log)[-1].count("not bounded") == 1


def test_the_log_file_has_whole_lines_of_all_processes(serve_log: Path, tmp_path: Path) -> None:
    path = tmp_path / "log-file"
    code = (
        "import logging\n"
        "from deployments.log.log_options import LogOptions\n"
        "from deployments.log.process_log import ProcessLog\n"
        f"ProcessLog(LogOptions(log_file={str(path)!r}))\n"
        "for _ in range(200): logging.getLogger('app').info('x' * 20_000)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    written = lines(path)
    assert len(written) == 600
    assert all(re.fullmatch(rf'I\S+ \S+ \d+ \S+ "{"x" * 20_000}"', line) for line in written)
    assert path.stat().st_mode & 0o007 == 0


def test_a_log_file_that_was_moved_is_made_anew_and_one_that_cannot_be_written_harms_nobody(
    serve_log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "log-file"
    log = ProcessLog(LogOptions(log_file=str(path)))
    OURS.info("there is no such folder")
    path.parent.mkdir()
    OURS.info("first")
    path.rename(path.with_name("log-file.1"))
    OURS.info("second")
    path.rename(path.with_name("log-file.2"))
    path.touch()  # another process has made it anew
    OURS.info("third")
    log.apply(replace(LogOptions(), log_file=""))
    OURS.info("fourth")
    written = [path.with_name("log-file.1"), path.with_name("log-file.2"), path]
    assert [[line.split('"')[1] for line in lines(each)] for each in written] == [["first"], ["second"], ["third"]]
    assert len(lines(serve_log)) == 5


def test_a_full_disk_is_no_news_to_the_log_that_lies_on_it(serve_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging prints what it cannot write to `sys.stderr`, which in a replica writes to that same log."""

    class StderrInLog:
        def write(self, text: str) -> None:
            OURS.info("%s", text)

    ProcessLog(LogOptions())
    monkeypatch.setattr(sys, "stderr", StderrInLog())
    with full_disk():
        OURS.error("nobody reads this")
    OURS.error("there is room again")
    assert "there is room again" in lines(serve_log)[-1]


def test_a_traceback_does_not_pass_through_print(serve_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.print", lambda *objects, **_: None)
    ProcessLog(LogOptions())
    try:
        raise ValueError("wrong")
    except ValueError:
        OURS.exception("failed")
    assert lines(serve_log)[1] == "    Traceback (most recent call last):"
    assert lines(serve_log)[2].startswith(f'      File "{__file__}", line '), "quotes as people paste them"
    assert lines(serve_log)[-1] == "    ValueError: wrong"
