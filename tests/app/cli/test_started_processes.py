"""None of the processes that a command has started outlives it."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from app.cli.started_processes import kill_all

SLEEPS = "import time; time.sleep(60)"


@pytest.fixture
def child() -> Any:
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as process:
        yield process
        process.kill()


def test_what_a_first_look_misses_is_seen_at_the_second(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose own parent ends in that moment."""
    look: Callable[..., list[psutil.Process]] = psutil.Process.children
    looks: list[int] = []

    def children(self: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        looks.append(len(looks))
        return [] if len(looks) == 1 else [each for each in look(self, recursive=recursive) if each.pid == child.pid]

    monkeypatch.setattr(psutil.Process, "children", children)
    began_s = time.monotonic()
    kill_all()
    assert not psutil.pid_exists(child.pid) and time.monotonic() - began_s < 5
