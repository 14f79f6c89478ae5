"""`python -m benchmarks.turns OTHER`: this version of Eagleray beside another server, by turns.

OTHER is a folder that holds another version, or `triton`. Both serve the same model meanwhile, and each is loaded for
some seconds in turn: what the machine does besides falls on both, so that a difference of some percent shows, which
runs that follow one another do not tell.
"""

import shutil
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.awake import awake
from benchmarks.home import Home, PreparationError, install_load_generators, prepare
from benchmarks.load import PROTOCOLS, LoadError, Run, load_generator, run
from benchmarks.models import write_models
from benchmarks.peers import HERE, Peer, PeerError, eagleray, run_from, triton
from benchmarks.rows import MODELS, PLACEMENTS, ROWS, Work

TRITON = "triton"
FOLDER = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


def version_in(folder: Path, home: Home, placement: str, model: str, port: int) -> Peer:
    """Eagleray as it stands in a folder, with the packages of this Python environment."""
    peer = eagleray(home, home.models, placement, [model], port, None)
    peer.name = f"eagleray in {folder}"
    peer.log = peer.log.with_name(f"eagleray-{port}.log")
    run_from(folder, peer)
    return peer


def peer_model(model: str) -> str:
    """Return what Triton runs where Eagleray runs the model."""
    for row in ROWS:
        if row.work.model == model and row.peer == TRITON:
            return row.peer_model
    raise click.UsageError(f"Triton's package does not run {model}: it has the Python backend only")


def by_turns(
    home: Home, here: tuple[Peer, Work], other: tuple[Peer, Work], turns: int, duration_s: float
) -> list[tuple[Run, Run]]:
    """Return a run of each for every turn; who comes first changes."""
    pairs: list[tuple[Run, Run]] = []
    for turn in range(turns):
        order = (here, other) if turn % 2 else (other, here)
        runs = {peer: run(peer, work, duration_s, home.models, home.bodies) for peer, work in order}
        pairs.append((runs[here[0]], runs[other[0]]))
    return pairs


def told(ratios: Sequence[float]) -> str:
    """Return the median of ratios, and between what the middle half of them lies."""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def opened(other: str, home: Home, placement: str, model: str, port: int) -> tuple[Peer, str]:
    """Return the other server, and its name for the model."""
    if other == TRITON:
        return triton(home, [peer_model(model)], port), peer_model(model)
    return version_in(FOLDER.convert(other, None, None), home, placement, model, port), model


@click.command(help=__doc__)
@click.argument("other")
@click.option("--model", default="mlp_onnx", show_default=True, type=click.Choice(MODELS))
@click.option("--placement", default="isolated", show_default=True, type=click.Choice(PLACEMENTS))
@click.option("--protocol", default="http", show_default=True, type=click.Choice(PROTOCOLS))
@click.option("--clients", default="1,16", show_default=True, help="Numbers of clients, with commas between.")
@click.option("--shared-memory", is_flag=True, help="Have the tensors in system shared memory.")
@click.option("--turns", default=15, show_default=True, type=click.IntRange(min=2))
@click.option("--duration", "duration_s", default=2.0, show_default=True, help="Seconds for each turn of each server.")
@click.option("--port", default=18400, show_default=True, help="HTTP; the next ones are taken too.")
def main(
    other: str,
    model: str,
    placement: str,
    protocol: str,
    clients: str,
    shared_memory: bool,
    turns: int,
    duration_s: float,
    port: int,
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped then, too
    works = [Work(model, protocol, int(each), shared_memory=shared_memory) for each in clients.split(",")]
    home = Home.from_environment()
    try:
        tools = {load_generator(work) for work in works}
        if other == TRITON:
            prepare(home, tools)
        else:
            install_load_generators({tool for tool in tools if shutil.which(tool) is None})
        write_models(home.models)
        with ExitStack() as stack:
            click.echo(f"meanwhile {stack.enter_context(awake())}", err=True)
            here = stack.enter_context(version_in(HERE, home, placement, model, port))
            there, model_there = opened(other, home, placement, model, port + 10)
            stack.enter_context(there)
            for work in works:
                pairs = by_turns(home, (here, work), (there, replace(work, model=model_there)), turns, duration_s)
                rates = [ours.throughput / others.throughput for ours, others in pairs]
                costs = [ours.server_cpu_us / others.server_cpu_us for ours, others in pairs]
                click.echo(
                    f"{model}, {placement}, {protocol}, {work.concurrency} clients: {told(rates)} times the other's "
                    f"requests/s, {told(costs)} times its CPU a request"
                )
    except (PreparationError, PeerError, LoadError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
