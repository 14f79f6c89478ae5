"""Shows models as they load: a live table on a terminal, plain lines elsewhere."""

import re
import sys
import time
from collections import Counter
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.cli.printable import printable
from app.cli.table_console import cut_line
from deployments.control.directory import LOADING, READY, UNAVAILABLE, Directory

_COLUMNS = ("model", "version", "backend", "placement", "replicas", "device", "state", "seconds")
_STATE, _REASON = _COLUMNS.index("state"), len(_COLUMNS)
_STYLES = {READY: "green", UNAVAILABLE: "red", LOADING: "yellow"}
_TABLE_LINES = 6
"""What a table takes beside its rows: the summary, three rules and the head, and the line of what is left out."""
_OTHERS = ((LOADING, "loading"), (UNAVAILABLE, "failed"))
_URGENCY = {UNAVAILABLE: 0, LOADING: 1}
_NUMBER = re.compile(r"\b\d\S*")
"""What differs between two answers of a store that say the same: how long it took, or the number of the request."""

Row = tuple[str, ...]


def rows(directory: Directory) -> list[Row]:
    """Return one row for each model version: what stands in the columns, and the reason why it is not ready.

    One whose replicas are being replaced loads, like one that never had any.
    """
    found: list[Row] = []
    for name, entry in sorted(directory.models.items()):
        if not entry.versions:
            found.append((name, "-", entry.backend, "-", "-", "-", UNAVAILABLE, "-", entry.reason))
        for number, version in sorted(entry.versions.items()):
            seconds = f"{version.seconds:.1f}" if version.seconds else "-"
            found.append(
                (
                    name,
                    str(number),
                    entry.backend,
                    version.placement or "-",
                    str(version.replicas or "-"),
                    version.device or "-",
                    LOADING if version.replacing else version.state,
                    seconds,
                    version.reason,
                )
            )
    return found


def summary(directory: Directory) -> str:
    """Return how many model versions are ready, loading and failed, the last two only when there are any."""
    counts = Counter(row[_STATE] for row in rows(directory))
    ready = f"{counts[READY]} model version{'s are' if counts[READY] != 1 else ' is'} ready"
    others = (f"{counts[state]} {word}" for state, word in _OTHERS if counts[state])
    return ", ".join((ready, *others))


def picture(directory: Directory, width: int, height: int) -> Group:
    """Return the summary, a table and the reasons, no wider and no taller than the terminal.

    Where not all fits, versions that failed stand before those that load, and those before the ready ones.
    """
    found = rows(directory)
    reasons = [row for row in found if row[_REASON]]
    # At most a third of the lines for reasons; the cursor has the last line of a terminal.
    reason_lines = min(len(reasons), max(1, height // 3))
    room = max(1, height - 1 - _TABLE_LINES - reason_lines)
    shown = found
    if len(found) > room:
        urgent = set(sorted(found, key=lambda row: _URGENCY.get(row[_STATE], 2))[:room])
        shown = [row for row in found if row in urgent]
    grid = Table(*_COLUMNS, header_style="bold", width=None)
    for column in grid.columns:
        column.no_wrap = True
        column.overflow = "ellipsis"
    for row in shown:
        grid.add_row(*(Text(printable(cell)) for cell in row[:_REASON]), style=_STYLES.get(row[_STATE], ""))
    parts: list[Text | Table] = [Text(summary(directory), style="bold"), grid]
    if len(shown) < len(found):
        parts.append(cut_line(f"and {len(found) - len(shown)} more", "dim", width))
    fitting = reasons if len(reasons) <= reason_lines else reasons[: reason_lines - 1]
    for row in fitting:
        reason = printable(f"{row[0]} {row[1]}: {' '.join(row[_REASON].split())}")
        parts.append(cut_line(reason, _STYLES[UNAVAILABLE], width))
    if len(fitting) < len(reasons):
        parts.append(
            cut_line(f"and {len(reasons) - len(fitting)} more reasons: see /v2/repository/index", "dim", width)
        )
    return Group(*parts)


class Progress:
    """Shows a directory as it changes."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8) if self._console.is_terminal else None
        self._seen: dict[tuple[str, str], Row] = {}
        self._unread = ""
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
        self.line(f"[{time.monotonic() - self._started:6.1f} s] {text}")

    def line(self, text: str) -> None:
        """Print a line as it is, above the table while there is one; any thread may."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, directory: Directory) -> None:
        """Show the present state; each reason why nothing is known yet once."""
        gist = _NUMBER.sub("", directory.unread)
        if gist and gist != self._unread:
            self.say(printable(directory.unread))
        self._unread = gist
        if self._live is not None:
            self._live.update(picture(directory, *self._console.size))
            return
        for row in rows(directory):
            key = (row[0], row[1])
            if self._seen.get(key) != row:
                self._seen[key] = row
                pairs = zip((*_COLUMNS[2:], "reason"), row[2:], strict=True)
                shown = (f"{name} {' '.join(value.split())}" for name, value in pairs if value not in ("-", ""))
                self.say(printable(f"{row[0]} {row[1]}: " + ", ".join(shown)))
