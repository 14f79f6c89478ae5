"""What a command prints reaches whoever reads it, and hurts nobody where nobody does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository_loader.repositories import python_model, write

EAGLERAY = str(Path(sys.executable).with_name("eagleray"))

PRINTS = """
import sys
from rich.console import Console
from app.cli.standard_streams import outlive_readers
outlive_readers()
for _ in range(100):
    print("a line", flush=True)
    Console().print("and another")
print("done", file=sys.stderr)
"""
QUICK = "from app.cli import standard_streams; standard_streams._Lossy._patience_s = 0.1; outlive_readers()"


def test_a_server_goes_on_when_nobody_reads_what_it_prints() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full, open(writing, "wb") as unread:
        for out in (unread, full):
            done = subprocess.run([sys.executable, "-c", PRINTS], stdout=out, stderr=subprocess.PIPE, check=False)
            assert (done.returncode, done.stderr) == (0, b"done\n")


def test_a_reader_that_stands_still_holds_up_nobody_and_has_the_next_lines_when_it_reads_again() -> None:
    reading, writing = os.pipe()
    prints = PRINTS.replace('"a line"', '"a line" + 9999 * "."').replace("\noutlive_readers()", "\n" + QUICK)
    script = prints + "sys.stdin.read(1)\nprint('read again', flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE
    ) as stuck:
        os.close(writing)
        assert stuck.stderr is not None and stuck.stderr.readline() == b"done\n"
        with open(reading, "rb") as reader:
            assert reader.read(8192).startswith(b"a line....")
            stuck.communicate(b".", timeout=60)
            assert reader.read().endswith(b"read again\n")
    assert stuck.returncode == 0


def test_what_is_read_comes_as_it_was_printed() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True)
    assert done.stdout == "a line\nand another\n" * 100


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_commands_print_names_that_the_terminal_has_no_letters_for_and_need_no_output(
    command: str, tmp_path: Path
) -> None:
    root = write(tmp_path, python_model("modèle"))
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([EAGLERAY, command, root], capture_output=True, env=environment, check=True)
    assert rb"mod\xe8le" in done.stdout
    closed = subprocess.run(["sh", "-c", f"exec {EAGLERAY} {command} {root} >&-"], capture_output=True, check=True)
    assert closed.stderr == b""


def test_what_cannot_be_read_or_written_is_said_in_a_line(tmp_path: Path) -> None:
    for arguments in (["plan", "http://127.0.0.1:1/x.tar"], ["validate", "http://127.0.0.1:1/x.tar"]):
        done = subprocess.run([EAGLERAY, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == (
            "Error: the model repository http://127.0.0.1:1/x.tar cannot be read: [Errno 111] Connection refused\n"
        )
    keys = tmp_path / "no folder" / "keys"
    done = subprocess.run([EAGLERAY, "new-api-key", "a", "--file", keys], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: [Errno 2] No such file or directory: '{keys}'\n")


NO_THREAD = """
import sys, threading
def refused(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refused
from app.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_that_no_thread_can_be_started_is_said_in_a_line(command: str, tmp_path: Path) -> None:
    root = write(tmp_path, python_model("m"))
    done = subprocess.run(
        [sys.executable, "-c", NO_THREAD, command, str(root)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: no more threads can be started here: see `ulimit -u`, and the pids limit of the container\n"
    )
