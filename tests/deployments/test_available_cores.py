import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.available_cores import available_cores
from tests.deployments.container import UNIFIED, process_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))


V1 = "33 25 0:30 {} %/cpu ro - cgroup cgroup rw,cpu,cpuacct\n34 25 0:31 {} %/cpuset ro - cgroup cgroup rw,cpuset\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "cores"),
    [
        ("0::/\n", UNIFIED, {"cgroup/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", UNIFIED, {"cgroup/cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", UNIFIED, {"cgroup/cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", UNIFIED, {"cgroup/cpu.max": "max 100000\n"}, 64),
        ("0::/\n", UNIFIED, {"cgroup/cpu.max": "12800000 100000\n"}, 64),
        ("0::/\n", UNIFIED, {}, 64),
        ("0::/a/b\n", UNIFIED, {"cgroup/a/b/cpu.max": "max 100000\n", "cgroup/a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", UNIFIED, {"cgroup/a/b/cpu.max": "500000 100000\n", "cgroup/a/cpu.max": "800000 100000\n"}, 5),
        ("0::/../../other\n", UNIFIED, {"cgroup/cpu.max": "400000 100000\n"}, 4),
        (
            "4:cpuacct,cpu:/docker/1\n3:cpuset:/docker/1\n0::/docker/1\n",
            V1.replace("{}", "/docker/1"),
            {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            3,
        ),
        (
            "4:cpu,cpuacct:/pod/1\n",
            V1.replace("{}", "/"),
            {
                "cpu/pod/1/cpu.cfs_quota_us": "-1\n",
                "cpu/pod/1/cpu.cfs_period_us": "100000\n",
                "cpu/pod/cpu.cfs_quota_us": "100000\n",
                "cpu/pod/cpu.cfs_period_us": "50000\n",
            },
            2,
        ),
        (
            "4:cpu,cpuacct:/\n",
            V1.replace("{}", "/"),
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "1\n"},
            64,
        ),
        ("0::/\n", UNIFIED, {"cgroup/cpu.max": "of another kind\n"}, 64),
    ],
    ids=[
        "two cores",
        "a part of a core counts as one",
        "less than a core",
        "no quota",
        "more than there are",
        "no controller",
        "that of the group around it",
        "the least of them",
        "a group that is not mounted",
        "version 1 in a container",
        "version 1 below another group",
        "version 1 without quota",
        "what nobody knows",
    ],
)
def test_the_quota_of_a_container_bounds_the_cores(tmp_path, groups, mounts, files, cores):
    assert available_cores(process_in(tmp_path, groups, mounts, files)) == cores


def test_the_affinity_bounds_them_too(tmp_path, monkeypatch):
    process = process_in(tmp_path, "0::/\n", UNIFIED, {"cgroup/cpu.max": "400000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7})
    assert available_cores(process) == 3
    assert available_cores(tmp_path / "nothing") == 3


@pytest.fixture
def half_a_core():
    """A control group of this machine with such a quota."""
    for parent, quota in ((Path("/sys/fs/cgroup"), "cpu.max"), (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us")):
        if (parent / "cgroup.procs").exists():
            group = parent / f"eagleray-test-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                if (group / quota).exists():
                    (group / quota).write_text("50000")
                    yield group
                    return
            finally:
                group.rmdir()
    pytest.skip("needs the right to make control groups with a quota")


def test_a_process_in_a_real_group(half_a_core):
    enter = f'echo $$ > {half_a_core}/cgroup.procs && exec "$@"'
    code = "from deployments.available_cores import available_cores; print(available_cores())"
    done = subprocess.run(
        ["sh", "-c", enter, "sh", sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "1"
