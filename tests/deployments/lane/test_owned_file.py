"""Files of living processes stay, whichever container asks; those of the dead go."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.lane.owned_file import OwnedFile, private_folder
from tests.serving import ROOT

OWNER = """
import socket, sys, time
from pathlib import Path
from deployments.lane.owned_file import OwnedFile
file = OwnedFile(Path(sys.argv[1]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(file.companion)
listener.listen()
print(file.companion, flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process and the socket on which it listens."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_socket_of_a_living_process_is_left_alone(owner: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    OwnedFile(tmp_path).close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(owner[1]))


def test_process_with_numbers_of_its_own_leaves_the_socket_alone(
    owner: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    """As in a container that shares the folder: there, the owner's process does not exist."""
    probe = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*probe, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a process namespace")
    code = f"import os, sys\nassert not os.path.exists('/proc/{owner[0].pid}')\n{OWNER}".replace("time.sleep(600)", "")
    subprocess.run([*probe, sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, timeout=30)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(owner[1]))


def test_what_a_dead_process_left_is_removed(owner: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    owner[0].send_signal(signal.SIGKILL)
    owner[0].wait(10)
    assert owner[1].exists()
    OwnedFile(tmp_path).close()
    assert not list(private_folder(tmp_path).iterdir())


def test_folder_that_others_can_open_is_refused(tmp_path: Path) -> None:
    os.chmod(private_folder(tmp_path), 0o755)
    with pytest.raises(PermissionError, match="must be a folder that only its owner can open"):
        OwnedFile(tmp_path)


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    file = OwnedFile(tmp_path)
    file.close()
    file.close()
    assert not list(private_folder(tmp_path).iterdir())
