"""What a server costs: CPU time and memory of all its processes, and what else the machine was doing. Linux only."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")

MARK = "EAGLERAY_BENCHMARK_PEER"
"""Environment variable that every process of a server inherits, so that those which left its process tree are found."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. The start time tells it from a later one with the same number."""

    pid: int
    parent: int
    start_ticks: int
    cpu_s: float


def read_process(pid: int) -> Process | None:
    """Return the process, or None if there is none, or a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    if fields[0] == "Z":
        return None
    return Process(pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S)


def processes_of(mark: str) -> list[Process]:
    """Return the processes whose environment holds the mark, and all their descendants.

    A process may leave its parent (Ray's daemons do) or overwrite its environment (Ray's workers do), not both.
    """
    everything = [process for entry in os.listdir(PROC) if entry.isdigit() and (process := read_process(int(entry)))]
    children: dict[int, list[Process]] = {}
    for process in everything:
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    queue = [process for process in everything if is_marked(process.pid, mark)]
    while queue:
        process = queue.pop()
        if process.pid not in found:
            found[process.pid] = process
            queue += children.get(process.pid, [])
    return list(found.values())


def is_marked(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def memory_mb(mark: str) -> float:
    """Return the proportional set size: memory shared by several processes counts once in the sum."""
    kilobytes = 0
    for process in processes_of(mark):
        try:
            lines = (PROC / str(process.pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def machine_cpu_s() -> float:
    """Return the CPU time that the whole machine has used: all but idle and waiting for disks."""
    ticks = [int(field) for field in (PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time used between two moments, in cores (1.0 = one core all the time)."""

    server_cores: float
    stray_cores: float
    """Neither the server nor the load generator, nor what keeps the cores awake: other programs, and the kernel."""


class CpuMeter:
    """Reads the CPU clocks of a server, of the load generator and of the machine, from its making to `stop`.

    Processes with `idle_mark` use only what is left.
    """

    def __init__(self, mark: str, load_generator_pid: int, idle_mark: str) -> None:
        self.mark = mark
        self.idle_mark = idle_mark
        self.load_generator_pid = load_generator_pid
        self.before = {process.pid: process.cpu_s for process in processes_of(mark)}
        self.load_before_s = self.load_generator_cpu_s()
        self.machine_before_s = self.busy_s()
        self.started_s = time.monotonic()

    def stop(self) -> Cpu:
        """Return the use since the making. The load generator must still be running."""
        elapsed_s = time.monotonic() - self.started_s
        machine_s = self.busy_s() - self.machine_before_s
        load_s = self.load_generator_cpu_s() - self.load_before_s
        server_s = sum(process.cpu_s - self.before.get(process.pid, 0.0) for process in processes_of(self.mark))
        return Cpu(server_s / elapsed_s, (machine_s - load_s - server_s) / elapsed_s)

    def busy_s(self) -> float:
        """Return the CPU time that the machine has used, without that of the programs which keep it awake."""
        return machine_cpu_s() - sum(process.cpu_s for process in processes_of(self.idle_mark))

    def load_generator_cpu_s(self) -> float:
        process = read_process(self.load_generator_pid)
        return process.cpu_s if process else 0.0
