"""What a replica leaves behind when it brings its death on itself, for the ingresses of its node.

It is in the file that the replica owns beside its socket (`OwnedFile`). The first line says how many lanes are open,
and what follows is the mark: nothing, as long as the replica lives or when somebody else kills it (SIGKILL, the
kernel's out-of-memory killer).
"""

import faulthandler
import os
from collections.abc import Callable
from typing import Any, Final

from deployments.lane.owned_file import file_beside

_MAX_MARK_BYTES: Final = 4096


class DeathMark:
    """Writes into an open file what ends this process: a fatal signal of its own code with the stack, or `os._exit`.

    Code in C that calls `_exit` leaves no mark. What else ends the process may write its mark to `descriptor`.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._removed = False
        os.write(descriptor, b"0\n")
        self._pid = os.getpid()
        self._exit: Callable[[int], Any] = os._exit
        faulthandler.enable(descriptor, all_threads=False)
        os._exit = self._mark_and_exit  # type: ignore[assignment]
        os.register_at_fork(after_in_child=faulthandler.disable)

    def _mark_and_exit(self, status: int) -> None:
        if os.getpid() == self._pid:  # `multiprocessing` ends forked children so
            os.write(self.descriptor, f"os._exit({status}) was called".encode())
        self._exit(status)

    def set_lane_count(self, count: int) -> None:
        """Note how many lanes are open; nine stand for more."""
        if not self._removed:
            os.pwrite(self.descriptor, b"%d" % min(count, 9), 0)

    def remove(self) -> None:
        """Write nothing from now on."""
        self._removed = True
        faulthandler.disable()
        os._exit = self._exit  # type: ignore[assignment]


def read_death_mark(unix_path: str) -> tuple[str, bool]:
    """Return why the replica that listened at a socket ended itself, and whether only one lane led to it then.

    The reason is "" when it did not end itself, or lived on another machine.
    """
    try:
        with open(file_beside(unix_path), "rb") as file:
            lanes, _, mark = file.read(_MAX_MARK_BYTES).decode("utf-8", "replace").partition("\n")
            return mark.strip(), lanes == "1"
    except OSError:
        return "", False
