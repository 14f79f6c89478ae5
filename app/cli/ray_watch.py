"""Sees to it that the server ends when its Ray has ended."""

import os
import sys
import threading
from collections.abc import Callable

from app.cli.local_ray import LocalRay, StartFailed
from app.cli.started_processes import end_everything

_LOOK_S = 0.25
_EXIT_CODE = 1


class RayWatch:
    """A thread that ends this process, and all that it has started, some time after Ray has ended.

    The main thread does that, unless it waits for the GCS: neither an exception nor a signal reaches it there, and
    after a minute Ray ends this process alone, which leaves others behind.
    """

    def __init__(self, ray: LocalRay, patience_s: Callable[[], float]) -> None:
        """Make it; `patience_s` says how long the main thread has when Ray has ended."""
        self._ray = ray
        self._patience_s = patience_s
        self._stderr = sys.stderr
        """As it is now: the main thread may have put another in its place when the end comes."""
        self._over = threading.Event()
        self._ending = threading.Lock()

    def start(self) -> None:
        """Begin to watch, once Ray has started."""
        threading.Thread(target=self._watch, name="ray watch", daemon=True).start()

    def end(self) -> None:
        """Watch no longer; waits for the end of this process where the watch has begun to end it."""
        with self._ending:
            self._over.set()

    def end_within(self, limit_s: float) -> threading.Timer:
        """End this process, and all that it has started, after that time, unless the timer is cancelled before.

        A call of Ray's waits for a GCS that stands still, whatever its timeout.
        """
        timer = threading.Timer(limit_s, self._give_up, [f"Ray did not stop within {limit_s:g} s, and was killed"])
        timer.daemon = True
        timer.start()
        return timer

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self._ray.require_alive()
            except StartFailed as error:
                self._over.wait(self._patience_s())
                self._end_everything(str(error))

    def _end_everything(self, reason: str) -> None:
        with self._ending:
            if not self._over.is_set():
                self._exit(reason)

    def _give_up(self, reason: str) -> None:
        with self._ending:  # the main thread, which goes on once the GCS is dead, waits in `end`
            self._exit(reason)

    def _exit(self, reason: str) -> None:
        print(f"error: {reason}", file=self._stderr, flush=True)  # Ray may end this process when its own are killed
        end_everything()
        os._exit(_EXIT_CODE)
