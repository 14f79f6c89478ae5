"""The rate limiter of a node as one of its processes sees it: asks the node's arbiter, or becomes it."""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import orjson

from deployments.backends.backend import ModelLoadError
from deployments.core.rate_limit import Given, Needs
from deployments.replica.arbiter_server import CLIENTS, SOCKET, ArbiterServer, needs_message, watch_process
from deployments.replica.node_folder import hold

logger = logging.getLogger(__name__)

_LOCK: Final = "lock"
_RETRY_S: Final = 0.02
_ADD_TIMEOUT_S: Final = 30.0
MAX_NEEDS_BYTES: Final = 1 << 16
"""What the resources of an instance take as JSON; an arbiter drops a process that says much more at once."""
_FORM: Final = 1
"""Raised when what is said to the arbiter changes: that of an older process may still be there."""


class NodeRateLimiter:
    """A `RateLimiter` over all processes of a node.

    The process that has the lock in `folder` is the arbiter; when it ends, another one that sees its connection end
    takes the lock. What a process holds, it tells a new arbiter before that grants anything. Processes that were given
    other resources, as before a change of the settings, have an arbiter of their own.
    """

    def __init__(self, folder: Path, given: Given, loop: asyncio.AbstractEventLoop) -> None:
        # A short name, as there is a socket in it.
        self._folder = folder / f"limit-{hashlib.sha256(repr((_FORM, given)).encode()).hexdigest()[:6]}"
        self._given = given
        self._loop = loop
        self._needs: dict[str, Needs] = {}
        self._adding: dict[str, asyncio.Future[str]] = {}
        self._wanted: dict[str, Callable[[], None]] = {}
        self._held: set[str] = set()
        self._name = ""
        self._descriptors: list[int] = []
        self._server: ArbiterServer | None = None
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def add(self, key: str, needs: Needs) -> None:
        """Make an instance known.

        Raises:
            ModelLoadError: it could never run, names too many resources, or the node's arbiter does not answer.
        """
        message = needs_message(needs)
        if len(orjson.dumps(message)) > MAX_NEEDS_BYTES:
            raise ModelLoadError(f"the resources of an instance take more than {MAX_NEEDS_BYTES} bytes")
        if not self._name:
            self._enter()
        added = self._adding[key] = self._loop.create_future()
        self._needs[key] = needs
        self._say("add", key, message, True, False)
        if self._connection is None and self._connecting is None:
            self._connect()
        try:
            fault = await asyncio.wait_for(added, _ADD_TIMEOUT_S)
        except TimeoutError:
            fault = "the rate limiter of the node does not answer"
        finally:
            self._adding.pop(key, None)
        if fault:
            self.remove(key)
            raise ModelLoadError(fault)

    def remove(self, key: str) -> None:
        """Forget an instance."""
        self._needs.pop(key, None)
        self._wanted.pop(key, None)
        self._held.discard(key)
        self._say("remove", key)

    def acquire(self, key: str, granted: Callable[[], None]) -> None:
        """Call `granted` in a later turn, when the instance may run."""
        self._wanted[key] = granted
        self._say("want", key)

    def release(self, key: str) -> None:
        """Give back what the instance held."""
        self._held.discard(key)
        self._say("done", key)

    def close(self) -> None:
        """Leave the node; another process may become the arbiter."""
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._server is not None:
            self._server.close()
        if self._name:
            (self._folder / self._name).unlink(missing_ok=True)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def granted(self, key: str) -> None:
        """Take what the arbiter grants."""
        call = self._wanted.pop(key, None)
        if call is None:
            self._say("done", key)
            return
        self._held.add(key)
        call()

    def added(self, key: str, fault: str) -> None:
        """Take the arbiter's answer to `add`."""
        waiting = self._adding.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(fault)

    def lost(self, connection: "_Connection") -> None:
        """Look for another arbiter when there is none any more."""
        if connection is self._connection:
            self._connection = None
            self._connect()

    def _enter(self) -> None:
        """Have a file that is held from when it has its name: a new arbiter takes one that is not for a dead one's."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        token = secrets.token_hex(8)
        unnamed = self._folder / f"new-{token}"
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._descriptors.append(descriptor)
        hold(descriptor)
        unnamed.rename(self._folder / f"{CLIENTS}{token}")
        self._name = f"{CLIENTS}{token}"

    def _say(self, kind: str, key: str, *rest: object) -> None:
        if self._connection is not None:
            self._connection.say(kind, key, *rest)

    def _connect(self) -> None:
        self._connecting = self._loop.create_task(self._find_arbiter())

    async def _find_arbiter(self) -> None:
        while True:
            try:
                self._become_arbiter()
                connection = await self._open()
            except (OSError, RuntimeError):  # the latter of a system that has no more threads
                await asyncio.sleep(_RETRY_S)
            else:
                if not connection.gone:  # as it is when the arbiter has ended in this moment
                    break
        self._connecting = None
        self._connection = connection
        for key, needs in self._needs.items():
            connection.say("add", key, needs_message(needs), key in self._adding, key in self._held)
        connection.say("joined", self._name)
        for key in self._wanted:
            connection.say("want", key)

    async def _open(self) -> "_Connection":
        """Connect to the arbiter.

        Raises:
            OSError: there is none.
        """
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.connect(str(self._folder / SOCKET))  # at once, or not at all
            client.setblocking(False)
            # A child that the arbiter's process forked may keep the connection open after its death.
            pidfd = watch_process(client)
            _, connection = await self._loop.create_unix_connection(
                lambda: _Connection(self, self._loop, pidfd), sock=client
            )
        except BaseException:
            client.close()
            raise
        return connection

    def _become_arbiter(self) -> None:
        """Serve the node if nobody else does.

        The lock is one that children made by fork do not inherit (fcntl, not flock).
        """
        if self._server is not None:
            return
        descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._server = ArbiterServer(self._folder, self._given)
        except BlockingIOError:
            os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        else:
            self._descriptors.append(descriptor)
            logger.info("this process is the arbiter of the node's rate limiter")


class _Connection(asyncio.Protocol):
    """A connection to the arbiter.

    What is said goes out two turns of the loop later: the scheduler of an instance that has run forms the next batch in
    the turn between, and the arbiter must know that the instance goes on before it grants what that gave back.
    """

    def __init__(self, limiter: NodeRateLimiter, loop: asyncio.AbstractEventLoop, pidfd: int) -> None:
        self._limiter = limiter
        self._loop = loop
        self._buffer = b""
        self._said = b""
        self._pidfd = pidfd
        self._transport: asyncio.Transport | None = None
        self.gone = False

    def say(self, *message: object) -> None:
        if not self._said:
            self._loop.call_soon(self._loop.call_soon, self._send)
        self._said += orjson.dumps(message) + b"\n"

    def _send(self) -> None:
        assert self._transport is not None
        said, self._said = self._said, b""
        if not self._transport.is_closing():
            self._transport.write(said)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
        self._unwatch()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            kind, key, *rest = orjson.loads(line)
            if kind == "grant":
                self._limiter.granted(key)
            else:
                self._limiter.added(key, *rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.gone = True
        self._limiter.lost(self)

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
