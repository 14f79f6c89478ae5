"""The control groups that this process is in, by which a container limits it; cgroups(7)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROCESS: Final = Path("/proc/self")


def control_groups(controller: str, process: Path = PROCESS) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from the process's own up to the highest that is mounted.

    Those of version 2 are for all controllers. There are none on other systems.
    """
    try:
        groups = (process / "cgroup").read_text(errors="replace").splitlines()
        mounts = [line.split() for line in (process / "mountinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            for mount in mounts:
                root, mount_point, kind, options = mount[3], mount[4], mount[mount.index("-") + 1], mount[-1].split(",")
                if kind == "cgroup" and controller in options if controllers else kind == "cgroup2":
                    yield from _upwards(Path(mount_point), os.path.relpath(path, root))


def _upwards(mount_point: Path, path: str) -> Iterator[Path]:
    """Yield a group and those around it; in place of one that is not below what is mounted, that."""
    group = mount_point if path.startswith("..") else mount_point / path
    while group.is_relative_to(mount_point):
        yield group
        group = group.parent
