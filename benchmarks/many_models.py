"""`python -m benchmarks.many_models 300`: how soon many small models are ready, and the memory they then need."""

import os
import shutil
import tempfile
from pathlib import Path

import click
import onnx

from benchmarks.home import Home
from benchmarks.models import mlp
from benchmarks.peers import PeerError, eagleray
from benchmarks.startup import Startup, measure_startup


def write_small_models(repository: Path, count: int) -> None:
    """Write the MLP of the other benchmarks (1.6 MB) under many names, each without a configuration."""
    model = mlp()
    for number in range(count):
        folder = repository / f"model_{number:04}" / "1"
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")


def measure(count: int, placement: str, port: int) -> Startup:
    repository = Path(tempfile.mkdtemp(prefix="eagleray-many-"))
    try:
        write_small_models(repository, count)
        home = Home.from_environment()
        return measure_startup(placement, lambda: eagleray(home, repository, placement, [], port, None))
    finally:
        shutil.rmtree(repository)


@click.command(help=__doc__)
@click.argument("counts", nargs=-1, type=click.IntRange(1, 10_000), required=True)
@click.option("--placement", default="auto", show_default=True)
@click.option("--port", default=18100, show_default=True, help="HTTP; gRPC and metrics take the next two.")
def main(counts: tuple[int, ...], placement: str, port: int) -> None:
    for count in counts:
        try:
            startup = measure(count, placement, port)
        except PeerError as error:
            raise click.ClickException(str(error)) from error
        click.echo(
            f"{count} models, {placement}: ready after {startup.ready_s:.1f} s, {startup.cpu_s:.1f} s of CPU, "
            f"{startup.memory_mb:,.0f} MB in {startup.process_count} processes, load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
