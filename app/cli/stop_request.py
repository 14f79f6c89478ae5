"""A request to stop that comes by signal."""

import contextlib
import os
import select
import weakref


class StopRequest:
    """Made by the handler of a signal, waited for by the main thread, which is also the one that runs the handler.

    `threading.Event` holds a lock for a moment on both sides: a handler that interrupts the main thread in that moment,
    as a second signal may, would wait for it for ever. `queue.SimpleQueue` (of Python 3.11) waits for ever when its
    time is over before the wait has begun, as on a busy machine.
    """

    def __init__(self) -> None:
        self.made = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        for end in (self._read_end, self._write_end):
            weakref.finalize(self, os.close, end)

    def make(self) -> None:
        """Ask; a handler may do so at any point, any number of times."""
        self.made = True
        with contextlib.suppress(BlockingIOError):  # it is full of requests
            os.write(self._write_end, b"!")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether it has been made, within the time given if there is one."""
        if not self.made:
            poll = select.poll()
            poll.register(self._read_end, select.POLLIN)
            poll.poll(None if timeout_s is None else timeout_s * 1000)
        return self.made
