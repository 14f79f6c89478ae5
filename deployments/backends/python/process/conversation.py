"""The replica's end of the second socket of a model's process, or of a process which that has forked."""

import socket
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from mmap import mmap
from typing import Any

from deployments.backends.python.process.area import OwnArea, PeerArea
from deployments.backends.python.process.channel import Channel, received
from deployments.backends.python.process.exchange import FREED
from deployments.backends.python.process.forwarded_log import log_here
from deployments.backends.python.process.outbox import Outbox
from deployments.backends.python.process.served_calls import ServedCalls
from deployments.backends.python.server import ModelServer
from protocol.infer import InferRequest


class Conversation:
    """Answers what the process asks, and asks it.

    `areas` are the open files of what the replica writes and of what the process writes; they and the connection
    belong to the conversation. `requests` returns those of some numbers that the process still has, and `kill` is
    called when it leaves too many answers unread, or what it says cannot be read, with that as a predicate.
    """

    def __init__(
        self,
        connection: socket.socket,
        areas: tuple[int, int],
        server: ModelServer | None,
        requests: Callable[[tuple[int, ...]], list[InferRequest]],
        kill: Callable[[str], None],
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._requests = requests
        self._kill = kill
        self._channel = Channel(connection, OwnArea(areas[0]), PeerArea(areas[1]))
        self.outbox = Outbox(self._channel, lambda: kill("takes no answers"))
        self._calls = ServedCalls(server, self._channel, self.outbox, requests)
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = count(1)

    def fileno(self) -> int:
        """Return the descriptor that says when there is something to read."""
        return self._connection.fileno()

    def read(self) -> bool | None:
        """Take a message, if there is one: True. None when there is none now, False at the end."""
        data = received(self._connection)
        if data:
            self._take(data)
            if self._channel.owes_room:
                self.outbox.send(FREED, None)
            return True
        return None if data is None else False

    def ask(self, kind: str) -> tuple[int, Future[Any]]:
        """Ask the process something; returns the number of the question, for `forget`, and its answer."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self.outbox.send(kind, None, number)
        return number, answer

    def forget(self, number: int) -> None:
        """Wait for an answer no longer."""
        self._asked.pop(number, None)

    def close(self) -> list[mmap]:
        """Give up what the process waits for: it is dead, or is about to be. Returns what is mapped, for `unmap`."""
        self.outbox.close()
        self._calls.give_all_up()
        return self._channel.close()

    def _take(self, data: bytes) -> None:
        try:
            kind, place, fields = self._channel.read(data)
        except OSError as error:
            self._kill(unreadable(error))
            return
        if kind == "log":
            log_here(*fields)
        elif kind == "cancelled":
            number, request_number = fields
            cancelled = any(request.cancelled for request in self._requests((request_number,)))
            self.outbox.send("answer", None, number, cancelled, None)
        elif kind == "call":
            number, call = fields
            self._calls.call(number, call, place)
        elif kind == "give_up":
            self._calls.give_up(*fields)
        elif kind == "answer":
            number, value = fields
            waiting = self._asked.pop(number, None)
            if waiting is not None:
                waiting.set_result(value)
        elif kind != FREED:
            number, *arguments = fields
            self._calls.control(number, kind, *arguments)


def unreadable(error: OSError) -> str:
    """Return what becomes of a process that has written what there is no descriptor, or no memory, to map with."""
    return f"has said what cannot be read: {error.strerror}"
