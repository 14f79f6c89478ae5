"""The rate limiter of a node with real processes, of which some are killed."""

import asyncio
import fcntl
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from deployments.backends.backend import ModelLoadError
from deployments.core.rate_limit import Needs, Resource
from deployments.replica import arbiter_server, node_rate_limiter
from deployments.replica.arbiter_server import ArbiterServer
from deployments.replica.node_folder import is_held
from deployments.replica.node_rate_limiter import MAX_NEEDS_BYTES, NodeRateLimiter
from tests.line_process import TIMEOUT_S, LineProcess
from tests.no_more_files import no_more_files
from tests.serving import wait_until


class Holder(LineProcess):
    """One process with instances that need the only R of the node."""

    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__(Path(__file__).with_name("limited_process.py"), str(folder), *names)

    def hear(self, line: str) -> None:
        assert self.answer() == line

    def silent(self) -> bool:
        return self.lines.empty()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start_one(*names: str) -> Holder:
        holder = Holder(tmp_path, *names)
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


def test_nobody_waits_for_a_dead_arbiter_whose_child_keeps_its_socket(
    start: Callable[..., Holder], tmp_path: Path
) -> None:
    """As between the moments in which another process takes the lock and in which it listens."""
    arbiter, waiting = start("a"), start("b")
    arbiter.say("fork x")
    child = int(arbiter.answer().removeprefix("forked "))
    waiting.process.send_signal(signal.SIGSTOP)
    arbiter.kill()
    (folder,) = tmp_path.glob("limit-*")
    with (folder / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        waiting.process.send_signal(signal.SIGCONT)
        waiting.say("want b")
        time.sleep(0.2)
        assert waiting.silent()
    try:
        waiting.hear("granted b")
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_dead_holder_whose_child_lives_holds_up_no_new_arbiter(start: Callable[..., Holder]) -> None:
    arbiter, holder, waiting = start("a"), start("b"), start("c")
    holder.say("fork x")
    child = int(holder.answer().removeprefix("forked "))
    try:
        holder.kill()
        killed_s = time.monotonic()
        arbiter.kill()
        waiting.say("want c")
        waiting.hear("granted c")
        assert time.monotonic() - killed_s < arbiter_server.JOIN_TIMEOUT_S / 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_no_file_of_a_living_process_is_there_that_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new arbiter would remove it, and no later one wait for what its process holds."""
    hold, seen = node_rate_limiter.hold, list[Path]()

    def hold_and_look(descriptor: int) -> None:
        seen.extend(tmp_path.glob(f"*/{arbiter_server.CLIENTS}*"))
        hold(descriptor)

    async def add() -> list[bool]:
        limiter = NodeRateLimiter(tmp_path, (), asyncio.get_running_loop())
        await limiter.add("a", Needs((Resource("R", 0, 1),), 1))
        held = [is_held(path) for path in tmp_path.glob(f"*/{arbiter_server.CLIENTS}*")]
        limiter.close()
        return held

    monkeypatch.setattr(node_rate_limiter, "hold", hold_and_look)
    assert asyncio.run(add()) == [True]
    assert not seen


def test_an_instance_that_goes_on_keeps_its_share_of_the_turns(start: Callable[..., Holder], tmp_path: Path) -> None:
    """Each wants its next turn as a scheduler does, in the turn of the loop after it has given its last one back."""
    start()  # the arbiter is another process
    turns = Counter[str]()

    async def take_turns() -> None:
        loop = asyncio.get_running_loop()
        limiter = NodeRateLimiter(tmp_path, (), loop)
        over = asyncio.Event()

        def want(key: str) -> None:
            limiter.acquire(key, partial(loop.call_later, 0.001, run, key))

        def run(key: str) -> None:
            turns[key] += 1
            if turns.total() == 150:
                over.set()
            limiter.release(key)
            time.sleep(0.002)  # the answers of its batch are sent
            loop.call_soon(want, key)

        for key, priority in (("once", 1), ("half", 2)):
            await limiter.add(key, Needs((Resource("R", 0, 1),), priority))
            want(key)
        await asyncio.wait_for(over.wait(), TIMEOUT_S)
        limiter.close()

    uvloop.run(take_turns())
    assert turns["half"] == pytest.approx(50, abs=3)


def test_a_process_that_has_no_thread_for_the_arbiter_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []
    start_thread = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        starts.append(thread.name)
        if starts == ["arbiter"]:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    async def add() -> None:
        limiter = NodeRateLimiter(tmp_path, (), asyncio.get_running_loop())
        monkeypatch.setattr(threading.Thread, "start", start)
        await asyncio.wait_for(limiter.add("a", Needs((Resource("R", 0, 1),), 1)), 5)
        limiter.close()

    asyncio.run(add())
    assert starts == ["arbiter", "arbiter"]


def test_an_arbiter_that_may_open_no_more_files_rests_until_it_can_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(arbiter_server, "ACCEPT_RETRY_S", 0.2)
    arbiter = ArbiterServer(tmp_path, ())
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        with no_more_files():
            client.connect(str(tmp_path / arbiter_server.SOCKET))
            client.sendall(b'["add","a",[1,[["R",0,1]]],true,false]\n')
            used_s = time.process_time()
            wait_until(lambda: len(caplog.records) >= 2, "two attempts")
            assert time.process_time() - used_s < 0.1
        assert client.recv(100) == b'["added","a",""]\n'
    arbiter.close()
    assert len(caplog.records) < 5


def test_what_a_process_says_to_hold_is_free_where_it_ended_as_it_was_answered(tmp_path: Path) -> None:
    arbiter = ArbiterServer(tmp_path, ())
    address, needs = str(tmp_path / arbiter_server.SOCKET), b'[1,[["R",0,1]]]'
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as client:
        gone.connect(address)
        gone.shutdown(socket.SHUT_RD)
        gone.sendall(b'["add","answered",%b,true,false]\n["add","held",%b,false,true]\n' % (needs, needs))
        client.settimeout(5)
        client.connect(address)
        client.sendall(b'["add","a",%b,true,false]\n["want","a"]\n' % needs)
        with client.makefile("rb") as lines:
            assert [lines.readline(), lines.readline()] == [b'["added","a",""]\n', b'["grant","a"]\n']
    arbiter.close()


def test_an_instance_whose_arbiter_did_not_answer_in_time_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that needs 5 of R would raise what there is of it."""
    send = ArbiterServer._send
    monkeypatch.setattr(node_rate_limiter, "_ADD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(ArbiterServer, "_send", lambda *said: None if "large" in said else send(*said))

    async def want() -> list[str]:
        limiter, granted = NodeRateLimiter(tmp_path, (), asyncio.get_running_loop()), []
        with pytest.raises(ModelLoadError, match="does not answer"):
            await limiter.add("large", Needs((Resource("R", 0, 5),), 1))
        for key in ("a", "b"):
            await limiter.add(key, Needs((Resource("R", 0, 1),), 1))
            limiter.acquire(key, partial(granted.append, key))
        await limiter.add("later", Needs((Resource("S", 0, 1),), 1))
        limiter.close()
        return granted

    assert asyncio.run(want()) == ["a"]


def test_resources_that_take_too_much_are_refused_and_hold_up_nobody(tmp_path: Path) -> None:
    """In JSON, a control character is six bytes long."""

    async def want() -> None:
        limiter, granted = NodeRateLimiter(tmp_path, (), asyncio.get_running_loop()), asyncio.Event()
        await limiter.add("a", Needs((Resource("R", 0, 1),), 1))
        for count in (MAX_NEEDS_BYTES // 6, 1 << 18):
            with pytest.raises(ModelLoadError, match="the resources of an instance take more than 65536 bytes"):
                await limiter.add("large", Needs((Resource("\1" * count, 0, 1),), 1))
        await limiter.add("as large as may be", Needs((Resource("R" * (MAX_NEEDS_BYTES - 16), 0, 1),), 1))
        limiter.acquire("a", granted.set)
        await asyncio.wait_for(granted.wait(), 5)
        limiter.close()

    asyncio.run(want())


def test_what_is_given_anew_holds_while_processes_of_before_are_there(tmp_path: Path) -> None:
    async def add() -> None:
        before, after = (
            NodeRateLimiter(tmp_path, (("R", None, count),), asyncio.get_running_loop()) for count in (2, 4)
        )
        await before.add("a", Needs((Resource("R", 0, 1),), 1))
        await after.add("b", Needs((Resource("R", 0, 3),), 1))
        with pytest.raises(ModelLoadError):
            await before.add("c", Needs((Resource("R", 0, 3),), 1))
        before.close()
        after.close()

    asyncio.run(add())
