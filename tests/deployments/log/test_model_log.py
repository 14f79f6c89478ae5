"""Which lines of a node's log files are a model's, and which of them say what went wrong."""

import logging
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from deployments.log.line_format import FORMATTERS, spelled_out
from deployments.log.model_log import ModelLog, failed_lines

PACKED = """\
I1122 10:00 "successfully loaded 'other' version 1"
E1122 10:01 "model instance 'small_0' cannot be loaded"
    Traceback (most recent call last):
      File "/models/small/1/model.py", line 3, in initialize
        open("weights")
    FileNotFoundError: weights
I1122 10:02 "successfully loaded 'smaller' version 1"
"""


EACH_BYTES = (3 << 20) + 1000
"""Of files of which not all may be read."""


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"replica_{name}_abc.log").write_text(text)


def test_a_packed_models_traceback_goes_with_the_line_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, "eagleray-packed_models", PACKED)
    lines = [line for _, line in ModelLog("small", tmp_path).last(100)]
    assert lines == PACKED.splitlines()[1:6]
    assert failed_lines(lines, "small") == [3, 4]


def test_what_the_controller_says_of_a_model_is_there_on_request(tmp_path: Path) -> None:
    write(tmp_path, "eagleray_RepositoryController", 'E1122 10:00 "failed to load \'m\' version 1: no"\nI1122 "else"\n')
    log = ModelLog("m", tmp_path)
    assert log.last(100) == [] and not log.files
    ((_, line),) = log.last(100, controller=True)
    assert failed_lines([line], "m") == [0]


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    write(tmp_path, "m_v1", "".join(f"line {number:09}\n" for number in range(400_000)))
    lines = [line for _, line in ModelLog("m", tmp_path).last(1_000_000)]
    assert lines[-1] == "line 000399999" and 250_000 < len(lines) < 300_000


def test_of_many_long_files_only_the_newest_are_read_and_no_more_lines_kept_than_are_wanted(tmp_path: Path) -> None:
    line = f"{'x' * 99}\n"
    for number in range(8):
        (tmp_path / f"replica_m_v1_{number}.log").write_text(line * (EACH_BYTES // len(line)))
        os.utime(tmp_path / f"replica_m_v1_{number}.log", (number, number))
    write(tmp_path, "eagleray_RepositoryController", "E1122 10:00 \"failed to load 'm' version 1: no\"\n")
    log = ModelLog("m", tmp_path)
    tracemalloc.start()
    try:
        lines = log.last(400, controller=True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert {name for name, _ in lines} == {"replica_m_v1_7.log"} and len(lines) == 400
    lines = log.last(10_000_000, controller=True)
    assert "failed to load" in lines[0][1]
    assert [name for name in dict.fromkeys(name for name, _ in lines[1:])] == [
        f"replica_m_v1_{number}.log" for number in (4, 5, 6, 7)
    ]


def test_another_models_files_are_not_a_models_own(tmp_path: Path) -> None:
    for name in ("digits_pipeline_v1", "digits_v1_v2", "digits_v12", "digits_v1-gpu0", "digits_v1-cpu", "digits_x"):
        write(tmp_path, name, f"of {name}\n")
    lines = {line for _, line in ModelLog("digits", tmp_path).last(100)}
    assert lines == {"of digits_v12", "of digits_v1-gpu0", "of digits_v1-cpu"}


def test_models_whose_names_begin_with_anothers_have_their_own_lines(tmp_path: Path) -> None:
    of_m = ["I \"successfully loaded 'm' version 1\"", "E \"model instance 'm_1_0' failed\"", 'I "[m] hello"']
    of_m_1 = ["I \"successfully loaded 'm_1' version 1\"", "E \"model instance 'm_1_0_0' failed\""]
    write(tmp_path, "eagleray-packed_models", "\n".join([*of_m, *of_m_1, ""]))
    assert [line for _, line in ModelLog("m", tmp_path).last(100)] == of_m
    lines = [line for _, line in ModelLog("m_1", tmp_path).last(100)]
    assert lines[-2:] == of_m_1 and of_m[0] not in lines


@pytest.mark.parametrize("model", ['say "hi"', "back\\slash", "Grüße", "m"])
@pytest.mark.parametrize("log_format", ["default", "json"])
def test_lines_are_found_however_their_model_is_written(tmp_path: Path, model: str, log_format: str) -> None:
    def line(text: str, **more: str) -> str:
        record = logging.makeLogRecord({"msg": text, "levelname": "INFO", "lineno": 1, **more})
        return FORMATTERS[log_format].format(record)

    written = [line(f"successfully loaded '{model}' version 1"), line(f"[{model}] hello"), line("'another'")]
    if log_format == "json":
        written.insert(0, line("a text without it", model=model))
    write(tmp_path, "eagleray-packed_models", "\n".join([*written, ""]))
    assert [line for _, line in ModelLog(model, tmp_path).last(100)] == written[:-1]


@pytest.mark.parametrize("log_format", FORMATTERS)
def test_what_failed_is_marked_in_every_format_as_people_read_it(log_format: str) -> None:
    def lines_of(text: str, level: str = "INFO", **more: object) -> list[str]:
        record = logging.makeLogRecord({"msg": text, "levelname": level, **more})
        return [line for each in FORMATTERS[log_format].format(record).split("\n") for line in spelled_out(each)]

    try:
        raise ValueError("no\n\x1b[31mnever")
    except ValueError:
        failed = lines_of("failed\nhere", "ERROR", exc_info=sys.exc_info())
    well = lines_of("all is well")
    assert len(well) == 1 and well[0].endswith('] "all is well"')
    lines = [*well, *failed, *well]
    assert lines[1].endswith(r'] "failed\nhere"') and lines[2] == "    Traceback (most recent call last):"
    assert [lines[place].strip() for place in failed_lines(lines, "m")] == ["ValueError: no"]
    error = lines_of("broken", "ERROR")
    assert failed_lines([*well, *error, *well], "m") == [1]
    (traced,) = lines_of("seen", trace_id="0af7", span_id="b7ad")
    assert traced.endswith('] "seen trace_id=0af7 span_id=b7ad"')


@pytest.mark.parametrize("line", ["{", '{"time": 1}', "[]", "", '{"message": "cut'])
def test_what_is_no_record_of_ours_stays_as_it_is(line: str) -> None:
    assert spelled_out(line) == [line]


@pytest.mark.parametrize("lines", [[], ["I1122 all is well"], ["    File without a head"]])
def test_nothing_is_marked_where_nothing_failed(lines: list[str]) -> None:
    assert failed_lines(lines, "m") == []


def test_of_several_tracebacks_the_last_counts() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "    a", "A: 1"]
    assert failed_lines(lines * 2, "m") == [7]


def test_an_empty_line_does_not_end_a_traceback_and_a_cut_one_is_marked_at_its_head() -> None:
    cut = ["  Traceback (most recent call last):", '    File "a.py", line 1', "", "      a"]
    assert failed_lines(cut, "m") == [0]
