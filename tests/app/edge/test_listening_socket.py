"""What Linux does with clients of a socket that closes while another listens on the same port; what is told of a taken one."""

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys

import pytest

from app.edge.listening_socket import let_no_more_in, listening_socket
from tests.serving import ROOT

CLIENTS = 32
CLOSES_ONE = f"""
import socket, subprocess, sys
from app.edge.listening_socket import listening_socket

subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
with open("/proc/sys/net/ipv4/tcp_migrate_req", "w") as file:
    file.write(sys.argv[1])
one = listening_socket("127.0.0.1", 0)
other = listening_socket(*one.getsockname())
for each in (one, other):
    each.listen({CLIENTS})
    each.settimeout(0.2)
clients = [socket.create_connection(one.getsockname()) for _ in range({CLIENTS})]
one.close()
accepted = []
try:
    while True:
        accepted.append(other.accept())
except TimeoutError:
    print(len(accepted))
"""


def _may_have_a_network() -> bool:
    """Whether this process may make a network namespace, whose Linux can hand clients over."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        return False
    command = ("unshare", "--net", "test", "-w", "/proc/sys/net/ipv4/tcp_migrate_req")
    return subprocess.run(command, capture_output=True, timeout=10).returncode == 0


@pytest.mark.skipif(not _may_have_a_network(), reason="needs root, unshare, ip and Linux 5.14")
@pytest.mark.parametrize("handed_over", ["0", "1"])
def test_clients_of_a_socket_that_closes_are_handed_to_the_one_that_listens_on(handed_over: str) -> None:
    command = ("unshare", "--net", sys.executable, "-c", CLOSES_ONE, handed_over)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) == CLIENTS) == (handed_over == "1")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_socket_that_lets_no_more_in_leaves_later_clients_to_another(host: str) -> None:
    with listening_socket(host, 0) as one, contextlib.ExitStack() as opened:
        one.listen(CLIENTS)
        one.setblocking(False)
        let_no_more_in(one)
        for _ in range(CLIENTS):
            client = opened.enter_context(socket.socket(one.family))
            client.setblocking(False)
            client.connect_ex(one.getsockname())
        with pytest.raises(BlockingIOError):
            one.accept()
        other = opened.enter_context(listening_socket(host, one.getsockname()[1]))
        other.listen(CLIENTS)
        other.settimeout(10.0)
        one.close()
        for _ in range(CLIENTS):
            opened.enter_context(other.accept()[0])


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_port_that_is_taken_is_named(host: str, shown: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        try:
            taken.bind((host, 0))
        except OSError:
            pytest.skip("needs IPv6")
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use") as caught:
            listening_socket(host, port)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):  # Serve brings it from another process
        assert str(error).endswith(f"Address already in use: '{shown}:{port}'")
