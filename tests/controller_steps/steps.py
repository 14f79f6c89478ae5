"""The test's side: has a server's controllers count their steps, and die at one of them."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.serving import ROOT, environment, wait_until

HOOK = ROOT / "tests/controller_steps/hook"
QUIET_S = 1.0

Kill = tuple[int, str]
"""At which step a controller dies, from 1 on, and whether "before" or "after" it."""


@dataclass(frozen=True)
class Step:
    """What a controller did; `dies` is "before" or "after" where it died of it."""

    number: int
    name: str
    dies: str

    def __str__(self) -> str:
        return f"{self.dies} step {self.number} ({self.name})"


class Steps:
    """Those of the controllers of one server, which is started with `env`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = folder / "steps"
        self._steps.touch()
        self._id = ""

    def env(self) -> dict[str, str]:
        """Return the environment of the server."""
        return environment(**self.variables())

    def variables(self) -> dict[str, str]:
        """Return what is in that environment besides."""
        return {"PYTHONPATH": str(HOOK), "CONTROLLER_STEPS": str(self._folder)}

    def arm(self, kills: Sequence[Kill]) -> None:
        """Count from 1 on from now on; the first controller dies at the first of these, its successor at the next."""
        self._id = secrets.token_hex(4)
        part = self._folder / "next"
        part.write_text(json.dumps({"id": self._id, "kills": kills}))
        part.rename(self._folder / "armed")

    def disarm(self) -> None:
        """Count no longer."""
        (self._folder / "armed").unlink()

    def done(self) -> list[Step]:
        """Return the steps since `arm`, of all controllers."""
        lines = (line.split(" ") for line in self._steps.read_text().splitlines())
        return [Step(int(number), name, dies) for id_, number, name, dies in lines if id_ == self._id]

    def died(self) -> list[Step]:
        """Return the steps that a controller died at."""
        return [step for step in self.done() if step.dies]

    @contextmanager
    def failing(self, what: str) -> Iterator[Callable[[], int]]:
        """Have the controller's calls for the "status" of applications, or to "describe" replicas, fail for a while.

        Yields what tells how often they have.
        """
        failed = self._folder / f"failed-{what}"
        failed.touch()
        told = self._folder / f"fail-{what}"
        told.touch()
        try:
            yield lambda: failed.stat().st_size
        finally:
            told.unlink()

    def wait_quiet(self) -> None:
        """Wait until a controller has done nothing for a second."""
        wait_until(lambda: time.time() - self._steps.stat().st_mtime > QUIET_S, "a controller that is done", 60)
