"""Two servers that share /tmp and /dev/shm, each in a pid namespace of its own, as in containers."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.repositories import write_tagged_onnx
from tests.serving import Server, tensor, title_of, wait_until

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
CONFIG = 'parameters { key: "eagleray.replicas" value { string_value: "1" } }\n'
FLAGS = ("--num-cpus", "2", "--no-dashboard", "--ingresses-per-node", "1", "--health-check-period-s", "0.5")
X = tensor("X", "INT32", [1], [1])
PARENTS = [Path(root) / f"eagleray-{os.getuid()}" for root in ("/tmp", "/dev/shm")]

can_unshare = subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


def files_of(server: Server) -> set[Path]:
    """Return the files in the shared folders that a server's processes hold, and the sockets beside them."""
    held = {Path(file.path) for process in server.descendants() for file in process.open_files()}
    own = {path for path in held if path.parent in PARENTS}
    return own | {path.with_name(f"{path.name}.at") for path in own if path.parent == PARENTS[0]}


def there(files: set[Path]) -> set[Path]:
    return {path for path in files if path.exists()}


@contextmanager
def serving(repository: Path, log: Path) -> Iterator[Server]:
    server = Server(repository, log, *FLAGS, within=NAMESPACE)
    try:
        yield server.wait_ready()
    finally:
        server.kill()


def end_in_order(server: Server) -> None:
    """Stop a server whose first process is the first of its namespace, and no child of the test."""
    started = set(server.descendants())
    first = next(process for process in started if process.ppid() == server.pid)
    first.send_signal(signal.SIGINT)
    server.exit_code()
    server.assert_none_left(started)


@pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make soak")
@pytest.mark.skipif(not can_unshare, reason="needs the right to make namespaces")
@pytest.mark.timeout(300)
def test_servers_that_cannot_see_each_others_processes_leave_each_others_files(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_tagged_onnx(repository, "model", 7, CONFIG)
    with serving(repository, tmp_path / "log") as server:
        own = there(files_of(server))
        assert own, "it has sockets that another server could remove"
        for ending in ("killed", "stopped"):
            with serving(repository, tmp_path / f"log-{ending}") as other:
                theirs = there(files_of(other))
                assert theirs
                assert server.infer("model", X).status == other.infer("model", X).status == 200
                if ending == "stopped":
                    end_in_order(other)
            assert there(own) == own, "what the living server has is there"
            assert server.infer("model", X).status == 200
        # A new replica makes a socket, and removes what the dead have left: those of the other server that was killed.
        replica = next(process for process in server.descendants() if ":model:" in title_of(process))
        replica.kill()
        wait_until(lambda: server.infer("model", X).status == 200, "an answer of the new replica", 60)
        assert not there(theirs)
        end_in_order(server)
    assert not there(own)
