"""The rate limiter of a node with real processes, of which some are killed."""

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving import ROOT, wait_until

TIMEOUT_S = 60.0


class Holder:
    """One process with instances that need the only R of the node."""

    def __init__(self, folder: Path, *names: str) -> None:
        program = str(Path(__file__).with_name("limited_process.py"))
        self.process = subprocess.Popen(
            [sys.executable, program, str(folder), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def hear(self, line: str) -> None:
        assert self.lines.get(timeout=TIMEOUT_S) == line

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def silent(self) -> bool:
        return self.lines.empty()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []
    folder = tmp_path_factory.mktemp("n")

    def start_one(*names: str) -> Holder:
        holder = Holder(folder, *names)
        started.append(holder)
        holder.hear("ready")
        return holder

    yield start_one
    for holder in started:
        holder.kill()


def test_instances_of_two_processes_run_one_after_the_other(start: Callable[..., Holder]) -> None:
    first, second = start("a"), start("b")
    for holder, other, mine, theirs in ((first, second, "a", "b"), (second, first, "b", "a")):
        holder.say(f"want {mine}")
        holder.hear(f"granted {mine}")
        other.say(f"want {theirs}")
        holder.say(f"want {mine}")  # goes the way that the other's has gone: it is not granted twice
        assert other.silent()
        holder.say(f"done {mine}")
        other.hear(f"granted {theirs}")
        other.say(f"done {theirs}")


def test_a_holder_that_is_killed_frees_what_it_held(start: Callable[..., Holder]) -> None:
    arbiter, holder, waiting = start(), start("b"), start("c")
    del arbiter
    holder.say("want b")
    holder.hear("granted b")
    waiting.say("want c")
    assert waiting.silent()
    holder.kill()
    waiting.hear("granted c")


def test_another_process_takes_over_from_an_arbiter_that_is_killed(start: Callable[..., Holder]) -> None:
    arbiter, holder, waiting = start("a"), start("b"), start("c")
    arbiter.say("wait x")
    arbiter.hear("arbiter")
    holder.say("want b")
    holder.hear("granted b")
    waiting.say("want c")
    arbiter.kill()
    # Both are connected to the new arbiter when each can be granted something, and `b` still holds R.
    holder.say("done b")
    waiting.hear("granted c")
    holder.say("want b")
    waiting.say("done c")
    holder.hear("granted b")


def test_what_is_held_stays_held_while_the_arbiter_changes(start: Callable[..., Holder]) -> None:
    arbiter, holder, waiting = start("a"), start("b"), start("c", "d")
    holder.say("want b")
    holder.hear("granted b")
    arbiter.kill()
    waiting.say("want c")
    late = start("e")
    late.say("want e")
    assert waiting.silent() and late.silent()
    holder.kill()
    # It may have been the new arbiter, and another one takes the two in as they come.
    wait_until(lambda: not (waiting.silent() and late.silent()), "a grant", timeout_s=TIMEOUT_S)
    turns = ((waiting, "c"), (late, "e")) if late.silent() else ((late, "e"), (waiting, "c"))
    (first, name), (second, other) = turns
    first.hear(f"granted {name}")
    assert second.silent()
    first.say(f"done {name}")
    second.hear(f"granted {other}")
