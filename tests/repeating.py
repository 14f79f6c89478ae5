"""Threads that do one thing again and again while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.serving import Client, Endpoint

JOIN_TIMEOUT_S = 120.0


@contextmanager
def repeating(*actions: Callable[[], object], pause_s: float = 0.0) -> Iterator[None]:
    """Do each in a thread of its own until the block ends; one that raises ends, and the block raises what it did."""
    stop = threading.Event()
    raised: list[Exception] = []

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not stop.wait(pause_s):
                action()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), "some have not ended"
    if raised:
        raise raised[0]


@contextmanager
def asking(server: Endpoint, ask: Callable[[Client], object], count: int = 1, pause_s: float = 0.0) -> Iterator[None]:
    """Have clients ask until the block ends, each on a connection of its own."""
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(count)]
        stack.enter_context(repeating(*(partial(ask, client) for client in clients), pause_s=pause_s))
        yield
