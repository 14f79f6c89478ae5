"""Which lines of a node's log files are a model's, and which of them say what went wrong."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("lines", [[], ["I1122 all is well"], ["    File without a head"]])
def test_nothing_is_marked_where_nothing_failed(lines: list[str]) -> None:
    assert failed_lines(lines, "m") == []


def test_of_several_tracebacks_the_last_counts() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "    a", "A: 1"]
    assert failed_lines(lines * 2, "m") == [7]


def test_an_empty_line_does_not_end_a_traceback_and_a_cut_one_is_marked_at_its_head() -> None:
    cut = ["  Traceback (most recent call last):", '    File "a.py", line 1', "", "      a"]
    assert failed_lines(cut, "m") == [0]
