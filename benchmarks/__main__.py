"""`python -m benchmarks`: measure Eagleray beside Triton, and ONNX Runtime alone, and say whether it is fast enough."""

import json
import os
import platform
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.awake import awake
from benchmarks.bare import rows_per_s
from benchmarks.home import Home, PreparationError, prepare
from benchmarks.load import PROTOCOLS, LoadError, Run, load_generator, run
from benchmarks.models import write_models
from benchmarks.peers import Peer, PeerError, eagleray, triton
from benchmarks.rows import MODELS, PLACEMENTS, ROWS, Row, Work, models_of
from benchmarks.startup import Startup, measure_startup
from benchmarks.table import Comparison, complaints_of, print_comparisons, print_startups

EXAMPLES = Path(__file__).parents[1] / "examples/model_repository"
QUICK_DURATION_S = 2.0
SETTLE_S = 5.0
"""A server is left alone for so long after it is ready: Ray still starts processes of its own then."""
TABLE_WIDTH = 220

Key = tuple[str, str, Work]
"""Placement, server and work of a run."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line said."""

    home: Home
    rounds: int
    duration_s: float
    triton_port: int
    eagleray_port: int
    eagleray_command: str | None


def measure_rows(settings: Settings, rows: list[Row]) -> list[Comparison]:
    """Measure the rows of each placement and company on their servers, in turn; only the one that is measured runs."""
    runs: dict[Key, list[Run]] = defaultdict(list)
    for round_number in range(settings.rounds):
        for placement, company in dict.fromkeys((row.placement, row.company) for row in rows):
            mine = [row for row in rows if (row.placement, row.company) == (placement, company)]
            servers = servers_of(settings, placement, mine)
            # Who comes first changes from round to round, so that a machine that slows down favours nobody.
            for name, peer, work in servers if round_number % 2 == 0 else reversed(servers):
                click.echo(f"round {round_number + 1}: {placement}: {name}", err=True)
                with peer or nullcontext():
                    time.sleep(SETTLE_S)
                    for what in sorted(work):
                        runs[placement, name, what].append(measure(settings, peer, what))
    return [
        Comparison(row, runs[row.placement, "eagleray", row.work], runs[row.placement, row.peer, row.peer_work])
        for row in rows
    ]


def servers_of(settings: Settings, placement: str, rows: list[Row]) -> list[tuple[str, Peer | None, set[Work]]]:
    """Return the servers of some rows and what each has to do; the one without a server is ONNX Runtime alone."""
    ours, theirs = models_of(rows)
    home, template = settings.home, settings.eagleray_command
    servers: list[tuple[str, Peer | None, set[Work]]] = []
    if theirs:
        servers.append(("triton", triton(home, theirs, settings.triton_port), peer_work(rows, "triton")))
    if alone := peer_work(rows, "bare"):
        servers.append(("bare", None, alone))
    server = eagleray(home, home.models, placement, ours, settings.eagleray_port, template)
    return [*servers, ("eagleray", server, {row.work for row in rows})]


def peer_work(rows: list[Row], name: str) -> set[Work]:
    return {row.peer_work for row in rows if row.peer == name}


def measure(settings: Settings, peer: Peer | None, work: Work) -> Run:
    measured = run_alone(settings, work) if peer is None else run_again_if_it_dies(settings, peer, work)
    rate = f" at {work.rate_rps}/s" if work.rate_rps else ""
    shared = " by shared memory" if work.shared_memory else ""
    click.echo(
        f"  {work.model} by {work.protocol} with {work.concurrency} clients{rate}{shared}: "
        f"{measured.throughput:,.0f} requests/s, p99 {measured.p99_us:,.0f} µs, {measured.server_cpu_us:,.0f} µs CPU "
        f"each, {measured.stray_cores:.2f} cores busy otherwise",
        err=True,
    )
    return measured


def run_alone(settings: Settings, work: Work) -> Run:
    file = settings.home.models / work.model / "1/model.onnx"
    duration_s = max(settings.duration_s, work.least_s)
    return Run(rows_per_s(file, work.concurrency, duration_s), 0.0, 0.0, 0, 0.0, 0.0, 0.0, work.concurrency)


def run_again_if_it_dies(settings: Settings, peer: Peer, work: Work) -> Run:
    """Measure; a server that dies of the load is started once more, since servers do crash at times."""
    home = settings.home
    for last in (False, True):
        try:
            measured = run(peer, work, max(settings.duration_s, work.least_s), home.models, home.bodies)
        except LoadError:
            if last or not peer.has_ended:
                raise
        else:
            if not peer.has_ended:
                return measured
        click.echo(f"  {peer.name} died of {work.model} by {work.protocol}, {work.concurrency} clients", err=True)
        peer.restart()
    raise LoadError(f"{peer.name} died twice of {work.model} by {work.protocol} with {work.concurrency} clients")


def measure_startups(settings: Settings, placements: list[str]) -> list[Startup]:
    def start(placement: str) -> Startup:
        port, template = settings.eagleray_port, settings.eagleray_command
        return measure_startup(placement, lambda: eagleray(settings.home, EXAMPLES, placement, [], port, template))

    return [start(placement) for _ in range(settings.rounds) for placement in placements]


def as_json(settings: Settings, comparisons: list[Comparison], startups: list[Startup]) -> str:
    document = {
        "machine": {"cpu_count": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "duration_s": settings.duration_s,
        "rows": [
            {
                **asdict(comparison.row),
                "ratio": comparison.ratio,
                "p99_ratio": comparison.p99_ratio,
                "complaints": complaints_of(comparison, comparisons),
                "is_noisy": comparison.is_noisy,
                "eagleray": [asdict(measured) for measured in comparison.eagleray],
                "peer_runs": [asdict(measured) for measured in comparison.peer],
            }
            for comparison in comparisons
        ],
        "startup": [asdict(startup) for startup in startups],
    }
    return json.dumps(document, indent=1)


def some_of(choices: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a callback that splits an option's value at its commas; each part is one of the choices."""

    def split(_: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        chosen = value.split(",")
        for part in chosen:
            if part not in choices:
                raise click.BadParameter(f"{part!r} is none of {', '.join(choices)}", param=parameter)
        return chosen

    return split


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, help="Rounds; the table shows medians.")
@click.option(
    "--placement",
    "placements",
    default=",".join(PLACEMENTS),
    show_default=True,
    callback=some_of(PLACEMENTS),
    help="Placements to measure, with commas between.",
)
@click.option(
    "--model",
    "models",
    default=",".join(MODELS),
    show_default=True,
    callback=some_of(MODELS),
    help="Models of Eagleray to measure, with commas between.",
)
@click.option("--protocol", type=click.Choice(PROTOCOLS), help="Measure only this protocol.")
@click.option("--duration", "duration_s", default=6.0, show_default=True, help="Seconds for each measurement.")
@click.option("--quick", is_flag=True, help="One short round; floors are shown, and not enforced.")
@click.option("--startup/--no-startup", default=True, show_default=True, help="Also measure start to ready.")
@click.option("--rows/--no-rows", "with_rows", default=True, show_default=True, help="Measure requests.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all runs here.")
@click.option("--awake/--asleep", "stays_awake", default=True, show_default=True, help="Let no core sleep.")
@click.option("--triton-port", default=18000, show_default=True, help="HTTP; gRPC and metrics take the next two.")
@click.option("--eagleray-port", default=18100, show_default=True, help="HTTP; gRPC and metrics take the next two.")
@click.option("--eagleray-command", help="Measure this command in place of `eagleray serve`. See README.md.")
def main(
    rounds: int,
    placements: list[str],
    models: list[str],
    protocol: str | None,
    duration_s: float,
    quick: bool,
    startup: bool,
    with_rows: bool,
    json_file: Path | None,
    stays_awake: bool,
    triton_port: int,
    eagleray_port: int,
    eagleray_command: str | None,
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped then, too
    if quick:
        rounds, duration_s = 1, QUICK_DURATION_S
    home = Home.from_environment()
    settings = Settings(home, rounds, duration_s, triton_port, eagleray_port, eagleray_command)
    rows = [
        row
        for row in ROWS
        if row.placement in placements and row.work.model in models and protocol in (None, row.work.protocol)
    ]
    if with_rows and not rows:
        raise click.UsageError("no row of these models has this protocol and placement")
    comparisons: list[Comparison] = []
    startups: list[Startup] = []
    try:
        if with_rows:
            prepare(home, {load_generator(row.work) for row in rows})
            write_models(home.models)
            with awake() if stays_awake else nullcontext("cores may sleep") as cores:
                click.echo(f"meanwhile {cores}", err=True)
                comparisons = measure_rows(settings, rows)
        if startup:
            startups = measure_startups(settings, placements)
    except (PreparationError, PeerError, LoadError) as error:
        raise click.ClickException(str(error)) from error

    console = Console()
    console.width = max(console.width, TABLE_WIDTH)  # narrower, and figures would be cut off
    if comparisons:
        print_comparisons(console, comparisons)
    if startups:
        print_startups(console, startups)
    if json_file is not None:
        json_file.write_text(as_json(settings, comparisons, startups))
    if not quick and any(complaints_of(comparison, comparisons) for comparison in comparisons):
        sys.exit(1)


if __name__ == "__main__":
    main()
