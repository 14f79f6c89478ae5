"""A service that has nothing to do."""

import time
from pathlib import Path

from tests.serving import Server, title_of, wait_until

_LOOK_S = 2.0


def _main_thread_runs(server: Server) -> dict[int, int]:
    """Return how often the main thread of each replica, ingress and controller of ours has been given a core."""
    ours = [process.pid for process in server.descendants() if title_of(process).startswith("ray::ServeReplica")]
    return {pid: int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[2]) for pid in ours}


def test_the_main_threads_hardly_wake(server: Server) -> None:
    before, begin = _main_thread_runs(server), time.monotonic()
    wait_until(lambda: time.monotonic() - begin > _LOOK_S, "the end of a look")
    after = _main_thread_runs(server)
    elapsed_s = time.monotonic() - begin
    rates = {pid: (runs - before[pid]) / elapsed_s for pid, runs in after.items() if pid in before}
    assert rates
    assert all(rate <= 40 for rate in rates.values()), f"runs a second of main threads: {rates}"
