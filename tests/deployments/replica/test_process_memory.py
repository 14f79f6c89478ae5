"""Memory of large buffers, in a process of its own: the setting cannot be taken back."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from deployments.replica.process_memory import keep_freed_pages

if sys.argv[1] == "keep":
    keep_freed_pages()

def round() -> None:
    for size in (600_000, 3_000_000, 20_000_000):
        np.empty(size, np.uint8).fill(1)

round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_large_buffers_reuse_their_pages() -> None:
    assert faults("keep") < 100 < faults("leave")
