"""Notices that the other end of a TCP connection is gone without a word: its node has died, or the network is cut."""

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

PROBE_S: Final = 2
DEAD_S: Final = 6.0
"""A peer that is gone is noticed after this time and another `PROBE_S` at most."""

# Of `struct tcp_info` in <linux/tcp.h>: `tcpi_probes` and `tcpi_unacked`, which are not 0 while the peer has yet to
# acknowledge a probe or data, and `tcpi_last_ack_recv`, milliseconds since it acknowledged anything.
_INFO: Final = struct.Struct("=3xB20xI28xI")
# The longest time between two probes, or two tries to send data; in <linux/tcp.h> since Linux 6.15.
_TCP_RTO_MAX_MS: Final = 44


class Heartbeat:
    """Has the kernel probe a silent peer, and calls `dead` once nothing has come back for `DEAD_S`.

    The peer's kernel answers the probes, so a process that is busy is not taken for a dead one, and nothing is added
    to what the connection carries. While that process lets more wait than its socket holds, the kernel probes ever
    more seldom (before Linux 6.15): silence counts only where a probe or data was unanswered at the last beat already.
    A beat that comes late says nothing: this machine may have been suspended, and has yet to probe. Does nothing on
    systems but Linux.
    """

    def __init__(self, sock: Any, loop: asyncio.AbstractEventLoop, dead: Callable[[], None]) -> None:
        self._socket = sock
        self._loop = loop
        self._dead = dead
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered = False
        if sys.platform == "linux":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, PROBE_S * 1000)
            self._wait()

    def stop(self) -> None:
        """Look no more; the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._due_s = self._loop.time() + PROBE_S
        self._timer = self._loop.call_later(PROBE_S, self._beat)

    def _beat(self) -> None:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        probes, unacked, silent_ms = _INFO.unpack(info)
        before, self._unanswered = self._unanswered, bool(probes or unacked)
        silent = silent_ms > DEAD_S * 1000 and before and self._unanswered
        if silent and self._loop.time() < self._due_s + PROBE_S:
            self._dead()
        else:
            self._wait()
