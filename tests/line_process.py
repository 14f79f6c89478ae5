"""A Python program that a test runs beside it, and talks with in lines."""

import queue
import subprocess
import sys
import threading
from pathlib import Path

from tests.serving import ROOT

TIMEOUT_S = 60.0


class LineProcess:
    """One process; what it prints is kept until it is asked for."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def answer(self) -> str:
        """Return the next line that it prints."""
        return self.lines.get(timeout=TIMEOUT_S)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
