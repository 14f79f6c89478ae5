"""Shows models as they load: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deployments.control.directory import LOADING, READY, UNAVAILABLE, Directory

_COLUMNS = ("model", "version", "backend", "placement", "replicas", "device", "state", "seconds", "reason")
_STYLES = {READY: "green", UNAVAILABLE: "red", LOADING: "yellow"}

Row = tuple[str, ...]


def rows(directory: Directory) -> list[Row]:
    """Return one row for each model version, in the order of `_COLUMNS`."""
    found: list[Row] = []
    for name, entry in sorted(directory.models.items()):
        if not entry.versions:
            found.append((name, "-", entry.backend, "-", "-", "-", UNAVAILABLE, "-", entry.reason))
        for number, version in sorted(entry.versions.items()):
            seconds = f"{version.seconds:.1f}" if version.seconds else "-"
            reason = version.reason.replace("\n", " ")
            found.append(
                (
                    name,
                    str(number),
                    entry.backend,
                    version.placement or "-",
                    str(version.replicas or "-"),
                    version.device or "-",
                    version.state,
                    seconds,
                    reason,
                )
            )
    return found


def table(directory: Directory) -> Table:
    """Return the table of all model versions."""
    grid = Table(*_COLUMNS, title="models", title_justify="left", header_style="bold")
    for row in rows(directory):
        grid.add_row(*row, style=_STYLES.get(row[6], ""))
    return grid


class Progress:
    """Shows a directory as it changes."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8) if self._console.is_terminal else None
        self._seen: dict[tuple[str, str], Row] = {}
        self._started = time.monotonic()

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """Print a line, with the seconds since the start."""
        self._console.print(f"[{time.monotonic() - self._started:6.1f} s] {text}", markup=False, soft_wrap=True)

    def show(self, directory: Directory) -> None:
        """Show the present state."""
        if self._live is not None:
            self._live.update(table(directory))
            return
        for row in rows(directory):
            key = (row[0], row[1])
            if self._seen.get(key) != row:
                self._seen[key] = row
                pairs = zip(_COLUMNS[2:], row[2:], strict=True)
                shown = (f"{name} {value}" for name, value in pairs if value not in ("-", ""))
                self.say(f"{row[0]} {row[1]}: " + ", ".join(shown))
