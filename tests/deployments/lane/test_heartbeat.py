"""When a peer that has been silent is taken for gone, and that the machine itself may have been suspended."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.lane.heartbeat import DEAD_S, PROBE_S, Heartbeat

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")


class Connection:
    """A socket and the loop that it belongs to, which tests turn by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.heard_s = 100.0
        self.ends = 0
        self.probed = True
        self._timer: tuple[float, Callable[[], None]] | None = None
        sock = SimpleNamespace(setsockopt=lambda *option: None, getsockopt=self._info)
        loop: Any = SimpleNamespace(time=lambda: self.now_s, call_later=self._call_later)
        self.heartbeat = Heartbeat(sock, loop, self._dead)

    def _info(self, level: int, name: int, size: int) -> bytes:
        probes = self.now_s > self.heard_s and self.probed
        silent_ms = round(1000 * (self.now_s - self.heard_s))
        return bytes((0, 0, 0, probes)) + bytes(size - 8) + silent_ms.to_bytes(4, sys.byteorder)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self._timer = self.now_s + delay_s, call
        return SimpleNamespace(cancel=lambda: None)

    def _dead(self) -> None:
        self.ends += 1

    def go_on(self, seconds: float, *, answers: bool) -> None:
        """Let time pass, in which the peer answers the probes or does not."""
        end_s = self.now_s + seconds
        while self._timer is not None and self._timer[0] <= end_s:
            (when_s, call), self._timer = self._timer, None
            self.now_s = max(self.now_s, when_s)
            self.heard_s = self.now_s if answers else self.heard_s
            call()
        self.now_s = end_s
        self.heard_s = end_s if answers else self.heard_s

    def suspend(self, seconds: float) -> None:
        """Let time pass in which nothing happens on this machine, and then what is overdue."""
        self.now_s += seconds
        self.go_on(0.0, answers=False)


def test_a_silent_peer_is_gone_in_time() -> None:
    connection = Connection()
    connection.go_on(60.0, answers=True)
    assert not connection.ends
    connection.go_on(DEAD_S + PROBE_S, answers=False)
    assert connection.ends == 1


def test_after_this_machine_was_suspended_a_peer_that_answers_is_not_gone_and_one_that_is_silent_is() -> None:
    connection = Connection()
    connection.go_on(10.0, answers=True)
    connection.suspend(60.0)
    assert not connection.ends
    connection.go_on(10.0, answers=True)
    assert not connection.ends
    connection.suspend(60.0)
    connection.go_on(PROBE_S, answers=False)
    assert connection.ends == 1


def test_a_peer_that_the_kernel_has_not_probed_is_not_gone() -> None:
    """So it is when a process that stands still has let its socket fill up: the kernel probes it ever more seldom."""
    connection = Connection()
    connection.probed = False
    connection.go_on(60.0, answers=False)
    assert not connection.ends
    connection.probed = True
    connection.go_on(PROBE_S, answers=False)  # the probe is on its way
    connection.go_on(10.0, answers=True)
    assert not connection.ends
    connection.go_on(DEAD_S + PROBE_S, answers=False)
    assert connection.ends == 1
