"""A request to stop that comes by signal."""

import contextlib
from queue import Empty, SimpleQueue


class StopRequest:
    """Made by the handler of a signal, waited for by the main thread, which is also the one that runs the handler.

    `threading.Event` holds a lock for a moment on both sides: a handler that interrupts the main thread in that moment,
    as a second signal may, would wait for it for ever.
    """

    def __init__(self) -> None:
        self.made = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def make(self) -> None:
        """Ask; a handler may do so at any point, any number of times."""
        self.made = True
        self._wake.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether it has been made, within the time given if there is one."""
        if not self.made:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=timeout_s)
        return self.made
