"""A replica on another node, in a network namespace, whose link is cut while requests are under way to it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from deployments.lane.address import ReplicaAddress
from tests.deployments.lane.far_replica import FORK, PING
from tests.deployments.lane.harness import Lanes, Sink
from tests.serving import ROOT

BOUND_S = 9.0
Cut = Callable[[], Awaitable[None]]
"""Waits until every scenario has its requests under way, and cuts the link."""
_NETWORK = f"10.254.{os.getpid() % 256}"
OURS, THEIRS = f"{_NETWORK}.1", f"{_NETWORK}.2"


class Node:
    """Another node: a network namespace, reached by a pair of virtual interfaces."""

    def __init__(self) -> None:
        self.name = f"eagleray{os.getpid()}"
        self._link = f"er{os.getpid()}"
        self._ip("netns", "add", self.name)
        self._ip("link", "add", self._link, "type", "veth", "peer", "name", "far", "netns", self.name)
        self._ip("addr", "add", f"{OURS}/30", "dev", self._link)
        self._ip("link", "set", self._link, "up")
        self._ip("-n", self.name, "addr", "add", f"{THEIRS}/30", "dev", "far")
        self._ip("-n", self.name, "link", "set", "far", "up")

    @staticmethod
    def _ip(*arguments: str, check: bool = True) -> None:
        subprocess.run(("ip", *arguments), check=check, capture_output=True, text=True, timeout=10)

    def cut(self) -> None:
        """Cut the link: nothing arrives any more, and nobody says so."""
        self._ip("-n", self.name, "link", "set", "far", "down")

    def remove(self) -> None:
        self._ip("netns", "del", self.name, check=False)
        self._ip("link", "del", self._link, check=False)


def start_replica(host: str, *prefix: str) -> "tuple[subprocess.Popen[str], int]":
    command = (*prefix, sys.executable, "-m", "tests.deployments.lane.far_replica", host)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.fixture
def node() -> Iterator[Node]:
    if sys.platform != "linux" or os.getuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and iproute2")
    try:
        made = Node()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield made
    made.remove()


class Farness:
    """A fleet with a lane to one far replica, and a near replica that has not been published yet."""

    def __init__(self, host: str, port: int) -> None:
        self.address = ReplicaAddress("far", "node-2", "", host, port, "secret")

    async def __aenter__(self) -> "Farness":
        self.lanes = await Lanes().__aenter__()
        self.lanes.fleet.set_replicas("echo#v1", {"far": self.address})
        await self.lanes.until(lambda: self.lanes.lanes_open == 1 and not self._near())
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.lanes.__aexit__(*args)

    def _near(self) -> bool:
        target = self.lanes.fleet.target("echo")
        return target is not None and bool(target.choice.near())

    async def send(self, count: int) -> list[Sink]:
        """Send requests, and wait until they have arrived: the replica answers the ping that comes after them."""
        sinks = [self.lanes.send(b"%d" % number)[0] for number in range(count)]
        assert (await self.lanes.ask(PING)).error is None
        return sinks

    async def publish_near(self, *, far: bool) -> None:
        near = self.lanes.replicas[0].address
        others = {"far": self.address} if far else {}
        self.lanes.fleet.set_replicas("echo#v1", {near.replica_id: near, **others})
        await self.lanes.until(self._near)


async def ended(sinks: list[Sink]) -> None:
    async with asyncio.timeout(BOUND_S):
        for sink in sinks:
            await sink.done.wait()


def test_requests_to_a_node_that_is_cut_off_end_in_time_and_those_to_a_process_that_stands_still_do_not(
    node: Node,
) -> None:
    async def answered_by_another(cut: Cut) -> None:
        async with Farness(THEIRS, far_port) as fleet:
            sinks = await fleet.send(20)
            await fleet.publish_near(far=True)
            await cut()
            await ended(sinks)
            assert [(sink.error, sink.responses) for sink in sinks] == [(None, [b"%d" % n]) for n in range(20)]

    async def answered_by_another_though_alone(cut: Cut) -> None:
        async with Farness(THEIRS, far_port) as fleet:
            sinks = await fleet.send(1)
            await fleet.publish_near(far=True)
            await cut()
            await ended(sinks)
            assert sinks[0].error is None

    async def answered_by_the_next_when_sent_after_the_cut(cut: Cut) -> None:
        async with Farness(THEIRS, far_port) as fleet:
            sinks = await fleet.send(1)
            await cut()
            sinks += [fleet.lanes.send(bytes(100_000))[0] for _ in range(20)]
            await fleet.lanes.until(lambda: fleet.lanes.fleet.target("echo") is None, timeout_s=BOUND_S)
            assert not any(sink.done.is_set() for sink in sinks)
            await fleet.publish_near(far=True)
            await ended(sinks)
            assert {sink.error for sink in sinks} == {None}

    async def moved_on_when_serve_has_dropped_the_replica(cut: Cut) -> None:
        async with Farness(THEIRS, far_port) as fleet:
            sinks = await fleet.send(3)
            await cut()
            await fleet.publish_near(far=False)
            await ended(sinks)
            assert {sink.error for sink in sinks} == {None}

    async def kept_by_a_process_that_stands_still(cut: Cut) -> None:
        async with Farness("127.0.0.1", still_port) as fleet:
            loop = asyncio.get_running_loop()
            (sink,) = await fleet.send(1)
            still.send_signal(signal.SIGSTOP)
            await cut()
            began = loop.time()
            fleet.lanes.send(bytes(20_000_000))  # more than the socket takes
            await fleet.lanes.until(lambda: loop.time() > began + BOUND_S, timeout_s=2 * BOUND_S)
            assert fleet.lanes.lanes_open == 1 and not sink.done.is_set()
            still.send_signal(signal.SIGCONT)
            assert (await fleet.lanes.ask(PING)).error is None

    async def run() -> None:
        scenarios = (
            answered_by_another,
            answered_by_another_though_alone,
            answered_by_the_next_when_sent_after_the_cut,
            moved_on_when_serve_has_dropped_the_replica,
            kept_by_a_process_that_stands_still,
        )
        ready, done = asyncio.Barrier(len(scenarios)), asyncio.Event()

        async def cut() -> None:
            if await ready.wait() == 0:
                node.cut()
                done.set()
            await done.wait()

        async with asyncio.TaskGroup() as group:
            for scenario in scenarios:
                group.create_task(scenario(cut))

    far, far_port = start_replica(THEIRS, "ip", "netns", "exec", node.name)
    still, still_port = start_replica("127.0.0.1")
    try:
        asyncio.run(run())
    finally:
        for process in (far, still):
            process.kill()
            process.wait(10)


def test_requests_to_a_replica_that_is_killed_go_to_another_though_what_it_has_forked_lives_on() -> None:
    async def run() -> None:
        async with Farness("127.0.0.1", port) as fleet:
            assert (await fleet.lanes.ask(FORK)).error is None
            assert replica.stdout is not None
            child = int(replica.stdout.readline())
            try:
                sinks = await fleet.send(3)
                await fleet.publish_near(far=True)
                replica.kill()
                await ended(sinks)
                assert [sink.responses for sink in sinks] == [[b"0"], [b"1"], [b"2"]]
            finally:
                os.kill(child, signal.SIGKILL)

    replica, port = start_replica("127.0.0.1")
    try:
        asyncio.run(run())
    finally:
        replica.kill()
        replica.wait(10)
