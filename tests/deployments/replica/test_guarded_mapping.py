"""A client makes the object of its region smaller while a process reads and writes it."""

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.backends.python.process.lent_regions import BorrowedRegions
from deployments.replica.region_mapping import RegionMapping
from tests.serving import ROOT

SIZE = 1 << 20
BEGIN = f"""
import faulthandler, mmap, os, signal, sys, threading
import numpy as np
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import InvalidArgument
faulthandler.enable()
key = sys.argv[1]
path = "/dev/shm/" + key
regions = Regions(OwnTable())
regions.register("r", key, 100, {SIZE} - 200)
view = regions.view("r", 0, {SIZE} - 200)
"""


@pytest.fixture
def key() -> Iterator[str]:
    name = f"eagleray-test-{secrets.token_hex(8)}"
    path = Path("/dev/shm") / name
    path.write_bytes(b"x" * SIZE)
    yield name
    path.unlink(missing_ok=True)


def process(code: str, key: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", BEGIN + code, key]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


USES = {
    "reads": "assert bytes(view)[-1] == 0",
    "writes": "view[:] = bytes(len(view))",
    "computes": "assert np.frombuffer(view, np.uint8).sum() < len(view) * ord('x')",
    "computes without the interpreter's lock": "a = np.frombuffer(view, np.uint8); np.dot(a[:8000].view('f4'), a[-8000:].view('f4'))",
    "reads in several threads": """
threads = [threading.Thread(target=bytes, args=(view,)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("left", [0, 5000])
def test_the_process_goes_on_and_the_region_is_refused(use: str, left: int, key: str) -> None:
    code = f"""
os.truncate(path, {left})
{use}
try:
    regions.view("r", 0, {SIZE} - 200)
except InvalidArgument as error:
    assert "shared memory region 'r' is larger than its object" in str(error), error
else:
    raise AssertionError("the region is still there")
os.truncate(path, {SIZE})
regions.view("r", 0, 3)[:] = b"abc"
assert open(path, "rb").read()[100:103] == b"abc"
regions.unregister("r")
regions.register("r", key, 0, {SIZE})
regions.view("r", 0, 3)[:] = b"abc"
assert open(path, "rb").read(3) == b"abc"
"""
    ended = process(code, key)
    assert not ended.returncode and not ended.stderr, ended.stderr


OWN_FAULTS = {
    "a file of its own": "file = mmap.mmap(os.open(path, os.O_RDWR), 8192); os.truncate(path, 0); file[0]",
    "a signal that is sent": "signal.raise_signal(signal.SIGBUS)",
    "a signal that is sent after a loss": "os.truncate(path, 0); bytes(view); os.kill(os.getpid(), signal.SIGBUS)",
}


@pytest.mark.parametrize("fault", OWN_FAULTS.values(), ids=OWN_FAULTS.keys())
def test_any_other_bus_error_ends_the_process_with_its_stack(fault: str, key: str) -> None:
    ended = process(fault, key)
    assert ended.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in ended.stderr


def test_an_object_that_was_small_for_a_while_is_seen_again_by_the_process_of_a_model(key: str) -> None:
    path = Path("/dev/shm", key)
    mapping = RegionMapping.of(str(path), 0, SIZE)
    borrowed = BorrowedRegions()
    borrowed.borrow([mapping.open_again()], [(mapping.number, 0, SIZE)])
    with path.open("r+b") as file:
        file.truncate(0)
        assert bytes(borrowed.view((mapping.number, 0, 10))) == bytes(10)
        assert not mapping.holds(SIZE)
        file.truncate(SIZE)
        file.write(b"news")
    assert mapping.holds(SIZE)
    assert bytes(borrowed.view((mapping.number, 0, 4))) == b"news"
    borrowed.forget(None, mapping.number)


def test_an_answer_for_which_a_models_process_has_no_memory_is_sent_to_its_replica(key: str) -> None:
    """Which finds the same, and has an error for the client."""
    code = """
from deployments.backends.python.process.channel import Writer
array = np.arange(100_000, dtype=np.uint8)
(_, _, _, content), = Writer().describe({"Y": array}, {"Y": view[:200_000]})
assert content is None and bytes(view[:100_000]) == array.tobytes()
os.truncate(path, 0)
(_, _, _, content), = Writer().describe({"Y": array}, {"Y": view[:200_000]})
assert content is not None
"""
    ended = process(code, key)
    assert not ended.returncode and not ended.stderr, ended.stderr
