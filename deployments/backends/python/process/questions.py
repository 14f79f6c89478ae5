"""The second socket of the process of a Python model: what is asked and told while a batch runs."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from deployments.backends.python.process.channel import READ_BYTES, Channel, Writer
from deployments.backends.python.process.exchange import read_error


class Questions:
    """The process's end. A thread reads what comes; the end of the socket is the end of the process.

    `answers` holds what answers a question of the replica by its kind, each on a thread of its own, and `hears` what
    takes its news, on the thread that reads.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.answers: dict[str, Callable[[], Any]] = {}
        self.hears: dict[str, Callable[..., None]] = {}
        self._waiting: dict[int, Future[Any]] = {}
        self._last_number = 0
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._read, name="eagleray-questions", daemon=True)

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
        self.channel.send(kind, writer, *fields)

    def ask(self, kind: str, *fields: Any) -> Any:
        """Ask the replica and wait for its answer.

        Raises:
            ServingError: the answer is an error.
        """
        answer: Future[Any] = Future()
        number = self.number()
        self._waiting[number] = answer
        self.channel.send(kind, None, number, *fields)
        return answer.result()

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
                    threading.Thread(target=self._answer, args=(kind, *fields), daemon=True).start()
                del place, fields
        finally:
            os.killpg(0, signal.SIGKILL)  # the replica is gone

    def _answer(self, kind: str, number: int) -> None:
        self.channel.send("answer", None, number, self.answers[kind]())


def connected(connection: socket.socket) -> socket.socket:
    """Return a socket that nothing which the model forks can speak through."""
    os.register_at_fork(after_in_child=connection.close)
    return connection
