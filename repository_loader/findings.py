"""What reading a repository found: errors and warnings, each with the place it stands at."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about a file of the repository; `line` and `column` count from 1."""

    severity: Severity
    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.severity}: {self.message}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule of the configuration; `field` is the path of the field to blame (`input[0].dims`), "" for none."""

    field: str
    message: str
