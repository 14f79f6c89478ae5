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
        rate = [] if before is None else ["req/s"]
        titles = ("version", "state", "requests", "failed", "mean ms", "queue ms", *rate)
        columns = (Column(title, no_wrap=True) for title in titles)  # what is too wide for a terminal folds the names
        table = Table(Column("model", overflow="fold"), *columns, box=None, pad_edge=False)
        for row in self.index:
            state = row.get("state", "-")
            table.add_row(
                Text(printable(row["name"])),
                Text(printable(row.get("version", "-"))),
                Text(printable(state), _STYLES.get(state, "")),
                *self._columns(_key(row), before),
            )
        if clear and console.is_terminal:
            click.clear()
        ready = "ready" if self.ready else "not ready"
        console.print(Text(printable(f"{self.server['name']} {self.server['version']} at {self.url}: {ready}")))
        console.print(table)
        for row in self.index:
            if row.get("reason"):
                console.print(Text(printable_lines(f"{row['name']} {row.get('version', '')}: {row['reason']}")))

    def _columns(self, key: tuple[str, str], before: "Status | None") -> list[str]:
        row = self.counts.get(key)
        if row is None:
            return ["-"] * (4 if before is None else 5)
        done, failed, queue = (row["inference_stats"][name] for name in ("success", "fail", "queue"))
        count = done["count"]
        columns = [str(count), str(failed["count"]), _mean_ms(done["ns"], count), _mean_ms(queue["ns"], count)]
        if before is not None:
            known = before.counts.get(key)
            past = 0 if known is None else known["inference_stats"]["success"]["count"]
            columns.append(f"{(count - past) / (self.at_s - before.at_s):.1f}")
        return columns


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["name"], row.get("version", "")


def _mean_ms(total_ns: int, count: int) -> str:
    return f"{total_ns / count / _NS_PER_MS:.2f}" if count else "-"
