"""How Ray runs under `eagleray serve`."""

import io
import sys

import pytest
from ray._private.worker import print_worker_logs

from app.cli.ray_variables import NODE_VARIABLES, ray_variables
from tests.serving import environment, run


@pytest.mark.parametrize("terminal", [True, False])
def test_what_ray_prints_has_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    for name, value in ray_variables(terminal=terminal).items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    print_worker_logs({"lines": ["a worker died"], "pid": "raylet"}, out)  # type: ignore[dict-item]
    assert out.getvalue().endswith("a worker died\n")
    assert ("\x1b" in out.getvalue()) is terminal


HEAPS = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
all_allocate = threading.Barrier(9)
def allocate():
    libc.malloc(1000)
    all_allocate.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
all_allocate.wait()
libc.malloc_info(0, out := ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(out)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_threads_share_two_heaps() -> None:
    counts = []
    own = environment()
    own.pop("MALLOC_ARENA_MAX", None)
    for variables in ({}, NODE_VARIABLES):
        done = run(sys.executable, "-c", HEAPS, env=own | variables)
        assert done.returncode == 0, done.stderr
        counts.append(done.stdout.count("<heap nr="))
    assert counts[0] > counts[1] == 2
