"""The dashboards that Ray writes for Grafana, whose panels its own Serve pages show."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.serving import Server

PANELS = re.compile(r"QPS|latency|Queue size|Running requests|Replicas|Ongoing")
"""Those about requests, errors, latencies, queues and replicas; the others are of nodes and of Serve's own loops."""
WITHOUT_DATA = re.compile("[Mm]ultiplexed")
"""Models that share a replica by Serve's own means, of which Eagleray makes no use."""
_VARIABLE = re.compile(r"\$\w+")


def session_folder(server: Server) -> Path:
    """Return the folder of the Ray session that a server has started."""
    found = (part for each in server.descendants() for part in each.cmdline() if part.startswith("--session-dir="))
    return Path(next(found).removeprefix("--session-dir="))


def queries(session: Path) -> Iterator[tuple[str, str]]:
    """Return panel and query, for all applications, deployments, replicas and routes."""
    for name in ("serve", "serve_deployment"):
        board = json.loads((session / "metrics/grafana/dashboards" / f"{name}_grafana_dashboard.json").read_text())
        for row in board["panels"]:
            for panel in row.get("panels") or [row]:
                if PANELS.search(panel["title"]) and not WITHOUT_DATA.search(panel["title"]):
                    yield from ((f"{name}: {panel['title']}", _every(each["expr"])) for each in panel["targets"])


def _every(query: str) -> str:
    return _VARIABLE.sub(".*", query)
