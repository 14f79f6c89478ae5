"""The first process of a namespace of its own, as in a container."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
ROOT = Path(__file__).parents[3]
BEGIN = """
import os, psutil, signal, subprocess, sys, time
from app.cli.first_process import run_below_first
run_below_first()
"""
ORPHANS = """
for _ in range(20):
    os.system("sleep 0 &")
deadline_s = time.monotonic() + 30
while len(psutil.pids()) > 2:
    assert time.monotonic() < deadline_s, subprocess.run(["ps", "-ef"])
    time.sleep(0.01)
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
"""
SIGNALS = """
came = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: came.append(number))
    os.kill(1, number)
    while number not in came:
        time.sleep(0.01)
"""

can_unshare = subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not can_unshare, reason="needs the right to make namespaces")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (ORPHANS, 0),
        (SIGNALS, 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 128 + 15),
    ],
    ids=["collects the processes of others", "passes signals on", "ends with the exit code", "ends as by the signal"],
)
def test_it_does_what_a_container_needs(code: str, exit_code: int) -> None:
    done = subprocess.run([*NAMESPACE, sys.executable, "-c", BEGIN + code], check=False, cwd=ROOT, timeout=60)
    assert done.returncode == exit_code


COUNTED = """
came = []
signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
print("waits", flush=True)
while not came:
    time.sleep(0.01)
time.sleep(0.5)
print(f"came {len(came)} times")
"""


def test_control_c_of_a_terminal_comes_once() -> None:
    """It has both processes in the foreground."""
    terminal, end = os.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", *NAMESPACE, sys.executable, "-c", BEGIN + COUNTED], cwd=ROOT, stdin=end, stdout=end
    ):
        os.close(end)
        shown = b""
        while b"times" not in shown:
            shown += os.read(terminal, 4096)
            if b"waits" in shown and b"^C" not in shown:
                os.write(terminal, b"\x03")
                shown += b"^C"
    os.close(terminal)
    assert b"came 1 times" in shown


def test_any_other_process_goes_on_itself() -> None:
    code = f"import os; pid = os.getpid(){BEGIN}assert os.getpid() == pid"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
