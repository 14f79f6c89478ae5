"""When a process ends because its event loop stands still."""

import subprocess
import sys
from pathlib import Path

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


def run(folder: Path, limit_s: float, what: str) -> tuple[int, str]:
    command = [sys.executable, "-c", PROCESS, str(folder / "mark"), str(limit_s), what]
    ended = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    return ended.returncode, (folder / "mark").read_text()


@pytest.mark.parametrize(
    "what",
    ["stop_the_loop(time.sleep, 100)", "threading.Thread(target=endless).start()"],
    ids=["on the loop's thread", "holds the interpreter"],
)
def test_a_process_whose_loop_stands_still_ends_with_its_stacks(tmp_path: Path, what: str) -> None:
    status, mark = run(tmp_path, 1.0, what)
    assert status == 1
    assert "Timeout" in mark and 'File "<string>"' in mark


@pytest.mark.parametrize(
    ("limit_s", "what"),
    [
        (3.0, "pass"),
        (3.0, "threading.Thread(target=time.sleep, args=[5]).start()"),
        (0.0, "stop_the_loop(time.sleep, 5)"),
        (1.0, "(loads := guard.patient()).__enter__(); stop_the_loop(time.sleep, 5)"),
        (1.0, "guard.stop(); stop_the_loop(time.sleep, 5)"),
    ],
    ids=["idle", "a thread that waits", "no limit", "models load", "stopped"],
)
def test_all_others_go_on(tmp_path: Path, limit_s: float, what: str) -> None:
    assert run(tmp_path, limit_s, what) == (0, "")
