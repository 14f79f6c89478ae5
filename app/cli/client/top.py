"""`eagleray top`: the console's table in a terminal."""

import json
import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from app.cli.client.live_rates import Rates, rates_between
from app.cli.client.remote_server import RemoteServer, server_options
from app.cli.printable import printable
from app.cli.table_console import cut_line, table_console

if TYPE_CHECKING:
    from rich.console import Group

_POLL_S: Final = 1.0
_TIMEOUT_S: Final = 30.0
_LIVE_TIMEOUT_S: Final = 3.0
_ESCAPE_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_WINDOW: Final = 10
_SET_BACK_MS: Final = 60_000
"""No ingress gives out a state that is as old."""
_LOOKS: Final = 10
_STATES: Final = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow", "UNLOADING": "yellow", "": "dim"}
_URGENCY: Final = ("UNAVAILABLE", "LOADING", "UNLOADING", "READY", "")
_HEAD_LINES: Final = 4

_SORTS: Final[dict[str, Callable[[Rates], Any]]] = {
    "name": lambda rates: (),
    "state": lambda rates: _URGENCY.index(rates.row["state"]) if rates.row["state"] in _URGENCY else 0,
    "rate": lambda rates: -rates.answered,
    "p99": lambda rates: -(rates.p99_us or 0),
    "queue": lambda rates: -(rates.queue_us or 0),
    "flight": lambda rates: -(rates.row.get("in_flight", 0) + rates.row.get("pending", 0)),
}
_COLUMNS: Final[tuple[tuple[str, int, Callable[[Rates], str]], ...]] = (
    ("version", 44, lambda rates: str(rates.row["version"] or "-")),
    ("state", 34, lambda rates: rates.row["state"] or "not loaded"),
    ("req/s", 0, lambda rates: _rate(rates.answered)),
    ("failed/s", 72, lambda rates: _rate(rates.failed)),
    ("p50", 60, lambda rates: _time(rates.p50_us)),
    ("p99", 52, lambda rates: _time(rates.p99_us)),
    ("queue", 84, lambda rates: _time(rates.queue_us)),
    ("compute", 94, lambda rates: _time(rates.compute_us)),
    ("batch", 104, lambda rates: "-" if rates.batch is None else f"{rates.batch:.1f}"),
    ("in flight", 112, lambda rates: str(rates.row.get("in_flight", 0))),
    ("wait", 66, lambda rates: str(rates.row.get("pending", 0))),
    ("runs", 134, lambda rates: " ".join(filter(None, (rates.row.get("placement"), rates.row.get("device"))))),
)
"""Each column, the narrowest terminal that has it, and what stands in it."""


@click.command()
@click.argument("address", metavar="[URL]", default="")
@click.option("--once", is_flag=True, help="Show it once; also where the output is no terminal.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(tuple(_SORTS)),
    default="rate",
    show_default=True,
    help="Column to sort models by.",
)
@server_options
def top(address: str, once: bool, order: str, server: RemoteServer, as_json: bool) -> None:
    """Show what all models do, every second: requests, latencies, queues. Keys: s sorts otherwise, q ends it."""
    if address:
        if click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE:
            raise click.UsageError("the server's URL is given twice")
        server = server.at(address)
    states = deque([_state_of(server)], maxlen=_WINDOW + 1)
    if as_json or once or not sys.stdout.isatty():
        for _ in range(_LOOKS):  # the server may answer the same for a while
            time.sleep(_POLL_S)
            _follow(server, states)
            if len(states) > 1:
                break
        if as_json:
            click.echo(
                json.dumps({"server": states[-1]["server"], "nodes": states[-1]["nodes"], "models": _rows(states)})
            )
        else:
            _print(states, order)
        return
    _watch(server, states, order)


def _state_of(server: RemoteServer, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    state: dict[str, Any] = server.get("/v2/console/state", timeout_s)
    return state


def _follow(server: RemoteServer, states: "deque[dict[str, Any]]", timeout_s: float = _TIMEOUT_S) -> None:
    """Take a state that is newer; another ingress may have an older one, or the server's clock was set back."""
    state = _state_of(server, timeout_s)
    if state["at_ms"] <= states[-1]["at_ms"] - _SET_BACK_MS:
        states.clear()
        states.append(state)
        return
    if state["at_ms"] > states[-1]["at_ms"]:
        states.append(state)


def _rows(states: "deque[dict[str, Any]]") -> list[dict[str, Any]]:
    return [rates.to_dict() for rates in rates_between(tuple(states))]


def _print(states: "deque[dict[str, Any]]", order: str) -> None:
    console = table_console()
    console.print(picture(tuple(states), order, console.width, None))


def _watch(server: RemoteServer, states: "deque[dict[str, Any]]", order: str) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    names = list(_SORTS)
    trouble, due_s = "", time.monotonic() + _POLL_S
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(picture(tuple(states), order, *console.size, trouble), refresh=True)
            for key in pressed(max(0.0, due_s - time.monotonic())):
                if key in "q\x03\x1b":
                    return
                if key == "s":
                    order = names[(names.index(order) + 1) % len(names)]
            if time.monotonic() >= due_s:
                try:
                    _follow(server, states, _LIVE_TIMEOUT_S)
                    trouble = ""
                except click.ClickException as error:
                    trouble = f"{error.format_message()}; what you see is from before"
                due_s = time.monotonic() + _POLL_S


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Have keys be read as they are pressed; what is returned waits for so long, and returns those that were."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], wait_s)
        return typed_keys(os.read(descriptor, 64)) if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def typed_keys(read: bytes) -> str:
    """Return the keys in what a terminal sent: without arrows and the like; `q` when it is gone."""
    return _ESCAPE_SEQUENCE.sub("", read.decode("utf-8", "replace")) if read else "q"


def _no_key(wait_s: float) -> str:
    time.sleep(wait_s)
    return ""


def picture(states: Sequence[dict[str, Any]], order: str, width: int, height: int | None, trouble: str = "") -> "Group":
    """Return a line on the server and a table no wider than the terminal, and no higher if that has a height."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    found = rates_between(states)
    found.sort(key=lambda rates: (_SORTS[order](rates), rates.row["name"], rates.row["version"]))
    shown = found if height is None else found[: max(1, height - _HEAD_LINES - bool(trouble))]
    table = Table(box=None, pad_edge=False, header_style="bold", width=min(width, 170))
    table.add_column("model", no_wrap=True, overflow="ellipsis", ratio=1, min_width=8)
    columns = [column for column in _COLUMNS if width >= column[1]]
    for title, _, _ in columns:
        numeric = title not in ("state", "runs")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=True, overflow="ellipsis")
    for rates in shown:
        style = _STATES.get(rates.row["state"], "")
        cells = [Text(text(rates), style if title == "state" else "") for title, _, text in columns]
        table.add_row(Text(printable(rates.row["name"])), *cells)
    parts: list[Table | Text] = [cut_line(_summary(found, states[-1], order), "bold", width), table]
    if trouble:
        parts.insert(1, cut_line(printable(trouble), "red", width))
    if len(shown) < len(found):
        parts.append(cut_line(f"and {len(found) - len(shown)} more", "dim", width))
    return Group(*parts)


def _summary(found: list[Rates], state: dict[str, Any], order: str) -> str:
    server = state["server"]
    ready = sum(rates.row["state"] == "READY" for rates in found)
    answered = sum(rates.clients for rates in found)
    flight = sum(rates.row.get("in_flight", 0) for rates in found)
    nodes = sum(bool(node["address"]) for node in state["nodes"])
    return (
        f"{printable(server['name'])} {server['version']}: {'ready' if server['ready'] else 'not ready'}, "
        f"{ready} of {len(found)} versions ready, {_rate(answered)} req/s, {flight} in flight, "
        f"{nodes} node{'s' if nodes != 1 else ''}; by {order}"
    )


def _rate(value: float) -> str:
    return "0" if not value else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    if us < 1000:
        return f"{us:.0f} µs"
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"
