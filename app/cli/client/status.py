"""What a server says of itself and its models at one moment."""

import time
from dataclasses import dataclass, field
from typing import Any

import click

from app.cli.client.remote_server import RemoteServer
from app.cli.printable import printable, printable_lines
from app.cli.table_console import table_console

_STYLES = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow", "UNLOADING": "yellow"}
_NS_PER_MS = 1e6
_MIN_NAME = 8
_COLUMNS = (
    ("version", 36),
    ("state", 0),
    ("requests", 48),
    ("failed", 56),
    ("mean ms", 66),
    ("queue ms", 76),
    ("req/s", 42),
)
"""Each column beside the names, and the narrowest terminal that has it."""


@dataclass(frozen=True, slots=True)
class Status:
    """`counts` are the statistics of each (model, version), `index` the rows of the repository index."""

    server: dict[str, Any]
    ready: bool
    index: list[dict[str, Any]]
    counts: dict[tuple[str, str], dict[str, Any]]
    url: str
    at_s: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, server: RemoteServer) -> "Status":
        """Ask a server."""
        metadata, ready = server.get("/v2"), server.ready()
        index = server.post("/v2/repository/index", {}, list)
        rows = server.get("/v2/models/stats")["model_stats"]
        return cls(metadata, ready, index, {(row["name"], row["version"]): row for row in rows}, server.url)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        models = [row | {"statistics": self.counts.get(_key(row))} for row in self.index]
        return {"server": self.server, "url": self.url, "ready": self.ready, "models": models}

    def print(self, before: "Status | None", *, clear: bool) -> None:
        """Print a table, and below it a line for each reason; requests a second are those since `before`."""
        from rich.table import Column, Table
        from rich.text import Text

        console = table_console()
        titles = [title for title, width in _COLUMNS if console.width >= width and (before or title != "req/s")]
        columns = (Column(title, no_wrap=True) for title in titles)  # what is too wide for a terminal folds the names
        table = Table(Column("model", overflow="fold", min_width=_MIN_NAME), *columns, box=None, pad_edge=False)
        for row in self.index:
            cells = {"version": row.get("version", "-"), "state": row.get("state", "-"), **self._counts(row, before)}
            style = _STYLES.get(cells["state"], "")
            shown = (Text(printable(cells.get(title, "-")), style if title == "state" else "") for title in titles)
            table.add_row(Text(printable(row["name"])), *shown)
        if clear and console.is_terminal:
            click.clear()
        ready = "ready" if self.ready else "not ready"
        console.print(Text(printable(f"{self.server['name']} {self.server['version']} at {self.url}: {ready}")))
        console.print(table)
        for row in self.index:
            if row.get("reason"):
                console.print(Text(printable_lines(f"{row['name']} {row.get('version', '')}: {row['reason']}")))

    def _counts(self, row: dict[str, Any], before: "Status | None") -> dict[str, str]:
        """Return what is known of a version's requests, by the titles of the columns."""
        counts = self.counts.get(_key(row))
        if counts is None:
            return {}
        done, failed, queue = (counts["inference_stats"][name] for name in ("success", "fail", "queue"))
        count = done["count"]
        found = {
            "requests": str(count),
            "failed": str(failed["count"]),
            "mean ms": _mean_ms(done["ns"], count),
            "queue ms": _mean_ms(queue["ns"], count),
        }
        if before is not None:
            known = before.counts.get(_key(row))
            past = 0 if known is None else known["inference_stats"]["success"]["count"]
            found["req/s"] = f"{(count - past) / (self.at_s - before.at_s):.1f}"
        return found


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["name"], row.get("version", "")


def _mean_ms(total_ns: int, count: int) -> str:
    return f"{total_ns / count / _NS_PER_MS:.2f}" if count else "-"
