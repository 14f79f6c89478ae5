"""What a process leaves in the file beside its socket, by what it ends with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.lane.death_mark import read_death_mark
from tests.serving import ROOT

PROCESS = """
import ctypes, multiprocessing, os, signal, sys
from pathlib import Path
from deployments.lane.death_mark import DeathMark
from deployments.lane.owned_file import OwnedFile
file = OwnedFile(Path(sys.argv[1]))
mark = DeathMark(file.descriptor)
print(file.companion, flush=True)
def die():
    exec(sys.argv[2])
die()
os.kill(os.getpid(), signal.SIGKILL)
"""


def mark_of(way: str, folder: Path) -> str:
    command = [sys.executable, "-c", PROCESS, str(folder), way]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    mark, only_lane = read_death_mark(ended.stdout.strip())
    assert not only_lane
    return mark


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("ctypes.string_at(0)", "Segmentation fault"),
        ("os.abort()", "Aborted"),
        *[(f"signal.raise_signal(signal.{name})", "in die") for name in ("SIGBUS", "SIGFPE", "SIGILL")],
        ("os._exit(3)", "os._exit(3) was called"),
    ],
)
def test_process_that_ends_itself_says_how(way: str, said: str, tmp_path: Path) -> None:
    assert said in mark_of(way, tmp_path)


@pytest.mark.parametrize(
    "way",
    [
        "pass",  # it is killed
        "multiprocessing.get_context('fork').Process(target=int).start(); os.wait()",
        "os.fork() or os._exit(1); os.wait()",
        "os.fork() or ctypes.string_at(0); os.wait()",
        "mark.remove(); os._exit(1)",
    ],
)
def test_process_that_is_killed_and_what_its_children_end_with_leave_no_mark(way: str, tmp_path: Path) -> None:
    assert mark_of(way, tmp_path) == ""


def test_no_file_is_no_mark(tmp_path: Path) -> None:
    assert read_death_mark(os.fspath(tmp_path / "gone.at")) == ("", False)


@pytest.mark.parametrize(("count", "only_lane"), [(0, False), (1, True), (2, False), (12, False)])
def test_a_mark_says_whether_there_was_one_lane(count: int, only_lane: bool, tmp_path: Path) -> None:
    way = f"mark.set_lane_count(2); mark.set_lane_count({count}); os._exit(1)"
    command = [sys.executable, "-c", PROCESS, str(tmp_path), way]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert read_death_mark(ended.stdout.strip()) == ("os._exit(1) was called", only_lane)
