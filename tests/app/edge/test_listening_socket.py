"""What Linux does with clients of a listening socket that closes while another listens on the same port."""

import os
import shutil
import subprocess
import sys

import pytest

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
