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


def measure_startup(placement: str, make_peer: Callable[[], Peer]) -> Startup:
    """Start the server, read its clock and memory when it says it is ready, and stop it."""
    with make_peer() as peer:
        return Startup(placement, peer.start_to_ready_s, memory_mb(peer.mark), len(processes_of(peer.mark)))
