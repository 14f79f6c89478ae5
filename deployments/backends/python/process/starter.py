"""Starts processes from one thread that never ends.

The kernel ends a process that asked for it (PR_SET_PDEATHSIG) when the *thread* that started it ends, not only when its
process does; so no thread that comes and goes may start one.
"""

import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, cast

_Order = tuple[Sequence[str], dict[str, Any], "Future[subprocess.Popen[bytes]]"]


class Starter:
    """Starts processes; its thread begins with the first."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Do what `subprocess.Popen` does, and raise what it raises."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="eagleray-starter", daemon=True)
                thread.start()
                self._thread = thread
        started: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((command, options, started))
        return started.result()

    def _run(self) -> None:
        while True:
            command, options, started = self._orders.get()
            try:
                started.set_result(cast("subprocess.Popen[bytes]", subprocess.Popen(command, **options)))
            except BaseException as error:
                started.set_exception(error)
            del command, options, started


STARTER = Starter()
