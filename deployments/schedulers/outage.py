"""How long requests wait for a model whose processes have all died."""

from collections.abc import Callable
from typing import Final

from deployments.core.clock import Clock, Timer

MAX_OUTAGE_S: Final = 60.0
LASTS: Final = "the process of each instance of the model has died, and none is back"


class Outage:
    """Calls `give_up` when no instance has lived for a minute, and after each further one while it returns True.

    `lives` says whether one does. Belongs to the loop's thread.
    """

    def __init__(self, clock: Clock, lives: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        self._call_later = clock.call_later
        self._lives = lives
        self._give_up = give_up
        self._timer: Timer | None = None
        self._over = False

    def look(self) -> None:
        """Take note that an instance has died or come back."""
        if not self._over and not self._lives():
            self._timer = self._timer or self._call_later(MAX_OUTAGE_S, self._lasts)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Look no more, as nothing will wait: the instances are about to be closed, and a timer would keep them."""
        self._over = True
        self.look()

    def _lasts(self) -> None:
        self._timer = None
        if self._give_up():
            self.look()
