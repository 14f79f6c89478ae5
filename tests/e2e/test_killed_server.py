"""A server that was killed, as the kernel does for lack of memory, leaves nothing behind."""

import signal
from pathlib import Path

from tests.repositories import EXAMPLES
from tests.serving import Server, title_of


def test_what_a_killed_server_has_started_ends(tmp_path: Path) -> None:
    server = Server(EXAMPLES, tmp_path / "log", "--num-cpus", "4", "--dashboard")
    try:
        server.wait_ready()
        started = {*server.descendants()}
        titles = " ".join(title_of(each) for each in started)
        assert "DashboardAgent" in titles and "RuntimeEnvAgent" in titles and "ray::ServeReplica:" in titles
        server.send_signal(signal.SIGKILL)
        server.assert_none_left(started)
    finally:
        server.kill()
