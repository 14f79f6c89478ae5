"""How long Eagleray takes from its command line to ready, and how much memory it then holds."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.measure import memory_mb, processes_of
from benchmarks.peers import Peer


@dataclass(frozen=True, slots=True)
class Startup:
    """One start of a placement."""

    placement: str
    ready_s: float
    memory_mb: float
    process_count: int
    cpu_s: float
    """Used by all its processes until then: what a machine that does something else as well does not change."""


def measure_startup(placement: str, make_peer: Callable[[], Peer]) -> Startup:
    """Start the server, read its clock and memory when it says it is ready, and stop it."""
    with make_peer() as peer:
        processes = processes_of(peer.mark)
        cpu_s = sum(process.cpu_s for process in processes)
        return Startup(placement, peer.start_to_ready_s, memory_mb(peer.mark), len(processes), cpu_s)
