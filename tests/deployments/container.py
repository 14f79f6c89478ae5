"""What the kernel tells a process of its container, as files."""

from pathlib import Path

OTHERS = "25 20 0:5 / /dev/shm rw - tmpfs  rw\n27 1 254:0 / / rw shared:1 master:2 - ext4 /dev/vda rw\n"
UNIFIED = "30 23 0:26 / %/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def process_in(folder: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Write what the kernel tells of a process (cgroups(7), proc_pid_mountinfo(5)); `%` is where groups are mounted."""
    for name, text in {"proc/cgroup": groups, "proc/mountinfo": OTHERS + mounts, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("%", str(folder)))
    return folder / "proc"
