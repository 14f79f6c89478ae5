"""The node's arbiter: a thread of one of the node's processes, which the others reach by a Unix socket.

What a process holds is free when its connection ends or the process does. The messages are JSON, one a line.
"""

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Final

import orjson

from deployments.core.arbiter import Arbiter
from deployments.core.rate_limit import Given, Needs, Resource
from deployments.replica.node_folder import is_held

logger = logging.getLogger(__name__)

SOCKET: Final = "s"
CLIENTS: Final = "client-"
JOIN_TIMEOUT_S: Final = 10.0
"""How long a new arbiter waits for a living process to say what it holds."""
_POLL_S: Final = 0.02
ACCEPT_RETRY_S: Final = 1.0
"""How long those who connect wait once this process may open no more files."""
_MAX_BUFFER_BYTES: Final = 1 << 20


class _Peer:
    """One process's connection; `pidfd` is readable when the process has ended, -1 where it cannot be watched."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.name = ""
        self.keys: set[str] = set()
        self.pidfd = watch_process(connection)
        self.gone = False


class ArbiterServer:
    """Serves an `Arbiter` from a thread.

    It grants nothing until every process that was alive before has said what it holds, or has ended.
    """

    def __init__(self, folder: Path, given: Given) -> None:
        """Listen, and start the thread.

        Raises:
            OSError: the socket cannot be made.
        """
        self._folder = folder
        self._arbiter = Arbiter(given)
        self._peers: dict[str, _Peer] = {}
        self._selector = selectors.DefaultSelector()
        self._awaited = {path.name for path in folder.iterdir() if path.name.startswith(CLIENTS)}
        self._awaited_until = time.monotonic() + JOIN_TIMEOUT_S
        self._accepts_from_s = 0.0
        """When it accepts again; 0: it does."""
        self._stop, self._stopped = socket.socketpair()
        path = folder / SOCKET
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen(1024)
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; another process takes over."""
        self._stop.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select(_POLL_S if self._awaited or self._accepts_from_s else None):
                if key.fileobj is self._stopped:
                    return self._end()
                if key.data is not None and key.data.gone:
                    continue
                try:
                    if key.data is None:
                        self._accept()
                    elif key.fileobj is key.data.connection:
                        self._read(key.data)
                    else:
                        self._drop(key.data)
                except Exception:
                    logger.exception("the rate limiter drops a connection")
                    if key.data is not None:
                        self._drop(key.data)
            if self._accepts_from_s and time.monotonic() > self._accepts_from_s:
                self._accepts_from_s = 0.0
                self._selector.register(self._listener, selectors.EVENT_READ, None)
            self._grant()

    def _end(self) -> None:
        for registered in list(self._selector.get_map().values()):
            if registered.data is not None and registered.fileobj is registered.data.connection:
                self._drop(registered.data)
        self._listener.close()
        self._stopped.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # the listener stays readable
            logger.warning("the rate limiter takes no connections for %g s: %s", ACCEPT_RETRY_S, error)
            self._selector.unregister(self._listener)
            self._accepts_from_s = time.monotonic() + ACCEPT_RETRY_S
            return
        connection.setblocking(False)
        try:
            peer = _Peer(connection)
        except ProcessLookupError:
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, peer)
        if peer.pidfd >= 0:
            self._selector.register(peer.pidfd, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(65536)
        except OSError:
            data = b""
        *lines, peer.buffer = (peer.buffer + data).split(b"\n")
        for line in lines:
            if peer.gone:  # it ended as it was answered: nothing would free what it says to hold
                return
            self._take(peer, *orjson.loads(line))
        if not data or len(peer.buffer) > _MAX_BUFFER_BYTES:
            self._drop(peer)

    def _take(self, peer: _Peer, kind: str, key: str, *rest: Any) -> None:
        if kind == "want":
            self._arbiter.want(key)
        elif kind == "done":
            self._arbiter.done(key)
        elif kind == "add":
            needs, checked, holds = _needs(rest[0]), bool(rest[1]), bool(rest[2])
            fault = self._arbiter.check(needs) if checked else ""
            if not fault:
                self._arbiter.add(key, needs, holds=holds)
                peer.keys.add(key)
                self._peers[key] = peer
            if checked:
                self._send(peer, "added", key, fault)
        elif kind == "remove":
            self._forget(peer, key)
        elif kind == "joined":
            peer.name = key
            self._awaited.discard(key)

    def _forget(self, peer: _Peer, key: str) -> None:
        self._arbiter.remove(key)
        self._peers.pop(key, None)
        peer.keys.discard(key)

    def _drop(self, peer: _Peer) -> None:
        """Free what a process held that has ended."""
        peer.gone = True
        for key in list(peer.keys):
            self._forget(peer, key)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.connection)
            peer.connection.close()
        if peer.pidfd >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.pidfd)
            os.close(peer.pidfd)
            peer.pidfd = -1

    def _grant(self) -> None:
        if self._awaited:
            self._await()
        if self._awaited:
            return
        while granted := self._arbiter.grants():
            for key in granted:
                if key in self._peers:  # else its process was dropped a moment ago
                    self._send(self._peers[key], "grant", key)

    def _await(self) -> None:
        """Wait no longer for processes that have ended."""
        overdue = time.monotonic() > self._awaited_until
        for name in list(self._awaited):
            try:
                gone = not is_held(self._folder / name)
            except OSError:
                gone = True
            if gone or overdue:
                self._awaited.discard(name)
            if gone:
                (self._folder / name).unlink(missing_ok=True)

    def _send(self, peer: _Peer, *message: str) -> None:
        """Send; who reads so little that it does not fit is dropped, and connects anew."""
        data = orjson.dumps(message) + b"\n"
        try:
            sent = peer.connection.send(data)
        except OSError:
            sent = 0
        if sent < len(data):
            self._drop(peer)


def watch_process(connection: socket.socket) -> int:
    """Return a descriptor that is readable when the process at the other end has ended, -1 where there is none.

    Raises:
        ProcessLookupError: it has ended already; a child that it forked may keep its end open.
    """
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid <= 0:
        return -1
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return -1


def needs_message(needs: Needs) -> list[Any]:
    """Return needs as they travel."""
    return [needs.priority, [[each.name, each.device, each.count] for each in needs.resources]]


def _needs(message: list[Any]) -> Needs:
    priority, resources = message
    return Needs(tuple(Resource(str(name), int(device), int(count)) for name, device, count in resources), priority)
