from collections import namedtuple

import psutil
import pytest

from deployments.free_memory import free_memory_bytes
from tests.deployments.container import UNIFIED, process_in

V1 = "33 25 0:30 / %/memory ro - cgroup cgroup rw,memory\n"
STAT = "anon 1\nfile 900\nshmem 500\ninactive_file 300\nactive_file 100\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "free_bytes"),
    [
        ("0::/\n", UNIFIED, {"memory.max": "5000\n", "memory.current": "2000\n", "memory.stat": STAT}, 3400),
        ("0::/\n", UNIFIED, {"memory.max": "max\n", "memory.current": "2000\n", "memory.stat": STAT}, 9000),
        ("0::/\n", UNIFIED, {"memory.max": "99999\n", "memory.current": "2000\n", "memory.stat": STAT}, 9000),
        ("0::/\n", UNIFIED, {"memory.max": "1000\n", "memory.current": "2000\n", "memory.stat": STAT}, 0),
        (
            "0::/a\n",
            UNIFIED,
            {
                "a/memory.max": "max\n",
                "a/memory.current": "10\n",
                "memory.max": "5000\n",
                "memory.current": "2000\n",
                "memory.stat": "anon 2000\n",
            },
            3000,
        ),
        (
            "4:memory:/\n",
            V1,
            {
                "memory.limit_in_bytes": "5000\n",
                "memory.usage_in_bytes": "2000\n",
                "memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n",
            },
            3400,
        ),
        ("0::/\n", UNIFIED, {}, 9000),
    ],
    ids=[
        "limit",
        "no limit",
        "more than there is",
        "none left",
        "of the group around it",
        "version 1",
        "no controller",
    ],
)
def test_the_limit_of_a_container_bounds_the_memory(tmp_path, monkeypatch, groups, mounts, files, free_bytes):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: namedtuple("Memory", "available")(9000))
    folder = "memory" if mounts == V1 else "cgroup"
    process = process_in(tmp_path, groups, mounts, {f"{folder}/{name}": text for name, text in files.items()})
    assert free_memory_bytes(process) == free_bytes
