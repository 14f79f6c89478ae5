"""When a process ends because its event loop stands still."""

import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.serving import ROOT

PROCESS = """
import asyncio, os, re, sys, threading, time
from deployments.replica import stall_guard

stall_guard.MIN_LIMIT_S = 1.0
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
guard = stall_guard.StallGuard(loop := asyncio.new_event_loop(), float(sys.argv[2]), descriptor)
stop_the_loop, endless = loop.call_soon, lambda: re.match("(a+)+b", "a" * 64)
exec(sys.argv[3])
loop.call_later(6.0, loop.stop)
loop.run_forever()
"""


CASES = {
    "on the loop's thread": (1.0, "stop_the_loop(time.sleep, 100)"),
    "holds the interpreter": (1.0, "threading.Thread(target=endless).start()"),
    "idle": (3.0, "pass"),
    "a thread that waits": (3.0, "threading.Thread(target=time.sleep, args=[5]).start()"),
    "no limit": (0.0, "stop_the_loop(time.sleep, 5)"),
    "models load": (1.0, "(loads := guard.patient()).__enter__(); stop_the_loop(time.sleep, 5)"),
    "stopped": (1.0, "guard.stop(); stop_the_loop(time.sleep, 5)"),
}
"""What each process has as its limit in seconds, and does."""
ENDING = ("on the loop's thread", "holds the interpreter")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit code of each process, and what it left; they run at the same time, as most of each is waiting."""
    marks = tmp_path_factory.mktemp("marks")
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(
                subprocess.Popen([sys.executable, "-c", PROCESS, str(marks / name), str(limit_s), what], cwd=ROOT)
            )
            for name, (limit_s, what) in CASES.items()
        }
        return {name: (process.wait(60), (marks / name).read_text()) for name, process in started.items()}


@pytest.mark.parametrize("name", ENDING)
def test_a_process_whose_loop_stands_still_ends_with_its_stacks(ended: dict[str, tuple[int, str]], name: str) -> None:
    status, mark = ended[name]
    assert status == 1
    assert "Timeout" in mark and 'File "<string>"' in mark


@pytest.mark.parametrize("name", [name for name in CASES if name not in ENDING])
def test_all_others_go_on(ended: dict[str, tuple[int, str]], name: str) -> None:
    assert ended[name] == (0, "")
