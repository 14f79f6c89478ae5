"""What a process has forked does not keep its connections open."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.serving import ROOT

FORKING = """
import os, signal, socket, sys
from deployments.lane.parent_descriptors import keep_all_from_children

address = ("127.0.0.1", int(sys.argv[1]))
before = socket.create_connection(address)
keep_all_from_children()
after = socket.create_connection(address)
if not (child := os.fork()):
    signal.pause()
print(child, flush=True)
signal.pause()
"""


def test_a_child_keeps_no_connection_open_that_was_there_before_it_may_be_forked_and_its_own_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = subprocess.Popen([sys.executable, "-c", FORKING, port], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            (before, _), (after, _) = listener.accept(), listener.accept()
            with before, after:
                process.kill()
                process.wait(10)
                before.settimeout(5)
                assert before.recv(1) == b""
                after.setblocking(False)
                with pytest.raises(BlockingIOError):
                    after.recv(1)
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()
