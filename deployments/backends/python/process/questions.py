"""The second socket of the process of a Python model: what is asked and told while a batch runs."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from deployments.backends.python.process.area import OwnArea, PeerArea
from deployments.backends.python.process.channel import READ_BYTES, Channel, Writer
from deployments.backends.python.process.exchange import FREED, read_error


class Questions:
    """The process's end. A thread reads what comes; the end of the socket is the end of the process.

    `answers` holds what answers a question of the replica by its kind, each on a thread of its own, and `hears` what
    takes its news, on the thread that reads. A process that the model forks gets a socket of its own when it first has
    something to say, whose other end it sends to the replica through `forks`.
    """

    def __init__(self, channel: Channel, forks: socket.socket) -> None:
        self.channel = channel
        self.answers: dict[str, Callable[[], Any]] = {}
        self.hears: dict[str, Callable[..., None]] = {FREED: _nothing}
        self._forks = forks
        self._forked = False
        self._connected = True
        self._waiting: dict[int, Future[Any]] = {}
        self._last_number = 0
        self._lock = threading.Lock()
        self.thread = self._new_thread()
        os.register_at_fork(after_in_child=self._begin_fork)

    def start(self) -> None:
        """Start to read."""
        self.thread.start()

    def number(self) -> int:
        """Return a number for a question."""
        with self._lock:
            self._last_number += 1
            return self._last_number

    def tell(self, kind: str, *fields: Any, writer: Writer | None = None) -> None:
        """Tell the replica something."""
        self._connect()
        self.channel.send(kind, writer, *fields)

    def ask(self, kind: str, *fields: Any) -> Any:
        """Ask the replica and wait for its answer.

        Raises:
            ServingError: the answer is an error.
        """
        self._connect()
        answer: Future[Any] = Future()
        number = self.number()
        self._waiting[number] = answer
        self.channel.send(kind, None, number, *fields)
        try:
            return answer.result()
        finally:
            del answer  # it has the error, and that this frame with what was sent

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._read, name="eagleray-questions", daemon=True)

    def _begin_fork(self) -> None:
        """Forget what is the forking process's own."""
        self._forked, self._connected = True, False
        self._waiting = {}
        self._lock = threading.Lock()  # which another thread may have held

    def _connect(self) -> None:
        if self._connected:
            return
        with self._lock:
            if self._connected:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            results, calls = (os.memfd_create(f"eagleray-{name}") for name in ("results", "calls"))
            with theirs:
                socket.send_fds(self._forks, [b"."], [theirs.fileno(), results, calls])
            self.channel = Channel(connected(ours), OwnArea(calls), PeerArea(results))
            self.thread = self._new_thread()
            self.thread.start()
            self._connected = True

    def _read(self) -> None:
        try:
            while data := self.channel.connection.recv(READ_BYTES):
                kind, place, fields = self.channel.read(data)
                if kind == "answer":
                    number, value, error = fields
                    waiting = self._waiting.pop(number)
                    if error is None:
                        waiting.set_result(value)
                    else:
                        waiting.set_exception(read_error(error))
                elif kind in self.hears:
                    self.hears[kind](place, *fields)
                else:
                    with contextlib.suppress(RuntimeError):  # the system has no more threads; nobody waits for long
                        threading.Thread(target=self._answer, args=(kind, *fields), daemon=True).start()
                del place, fields
                if self.channel.owes_room:
                    self.channel.send(FREED, None)
        finally:
            if not self._forked:
                os.killpg(0, signal.SIGKILL)  # the replica is gone
            os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, kind: str, number: int) -> None:
        self.channel.send("answer", None, number, self.answers[kind]())


def _nothing(place: Any) -> None:
    pass


def connected(connection: socket.socket) -> socket.socket:
    """Return a socket that no process which the model forks can speak through."""
    os.register_at_fork(after_in_child=connection.close)
    return connection
