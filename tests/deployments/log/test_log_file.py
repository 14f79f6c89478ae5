"""Whole lines, whatever the file is and however much room it has."""

import logging
import os
from pathlib import Path

import pytest

from deployments.log.log_file import LogFile, check_log_file
from tests.full_disk import full_disk


def write(log: LogFile, message: str) -> None:
    log.handle(logging.LogRecord("app", logging.INFO, "f.py", 1, message, (), None))


def test_a_line_that_a_full_disk_has_cut_is_not_glued_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path))
    write(log, "first")
    with full_disk(10):
        write(log, "second, of which there is room for a part")
        write(log, "third, for which there is none")
    write(log, "fourth")
    write(log, "fifth")
    assert path.read_text().splitlines() == ["first", "seco", "fourth", "fifth"]


def test_a_new_file_begins_with_a_line_whatever_became_of_the_last(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path))
    with full_disk(3):
        write(log, "first")
    path.rename(tmp_path / "old")
    write(log, "second")
    assert path.read_text() == "second\n"


def test_a_pipe_that_nobody_reads_is_refused_and_holds_nothing_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):
        check_log_file(str(path))
    write(LogFile(str(path)), "to nobody")
