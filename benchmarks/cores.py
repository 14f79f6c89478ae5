"""`python -m benchmarks.cores`: what more cores bring, by numbers of ingresses and of a small model's replicas.

The server is started once for each number of ingresses, with a copy of the small MLP for each number of replicas. Rows
appear as they are measured.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import onnx

from benchmarks.body import expected
from benchmarks.home import Home, PreparationError, install_load_generators
from benchmarks.load import PROTOCOLS, LoadError, Right, Run, run_checked
from benchmarks.models import INSTANCE, MLP_TENSORS, ONE_THREAD, config_of, mlp
from benchmarks.options import numbers
from benchmarks.peers import HERE, Peer, PeerError, eagleray, run_from
from benchmarks.rows import Work
from deployments.available_cores import available_cores

THREADS = 4
"""Of the load generators."""
FEW_CLIENTS, MANY_CLIENTS = 64, 128
MANY_INGRESSES = 4
ALL_INGRESSES = 8
READY_S = 120.0
PARAMETER = 'parameters {{ key: "eagleray.{key}" value: {{ string_value: "{value}" }} }}\n'
HEAD = (
    f"{'ingresses':>9} {'replicas':>8} {'protocol':8} {'clients':>7} {'requests/s':>10} {'CPU us':>7} {'times':>6} "
    f"{'p50 ms':>7} {'p99 ms':>7}"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row; `times` is its rate as a multiple of that of the first row of the same protocol."""

    ingresses: int
    replicas: int
    work: Work
    run: Run
    times: float

    def __str__(self) -> str:
        errors = f" {self.run.errors} errors" if self.run.errors else ""
        return (
            f"{self.ingresses:9} {self.replicas:8} {self.work.protocol:8} {self.work.concurrency:7} "
            f"{self.run.throughput:10,.0f} {self.run.server_cpu_us:7.0f} {self.times:6.2f} "
            f"{self.run.p50_us / 1e3:7.2f} {self.run.p99_us / 1e3:7.2f}{errors}"
        )


def replica_counts(ingresses: int) -> list[int]:
    """Return the numbers of replicas to measure: as many as there are ingresses, and with eight of them one."""
    return [ingresses, 1] if ingresses == ALL_INGRESSES else [ingresses]


def write_copies(repository: Path, counts: list[int]) -> None:
    """Write the small MLP once for each number of replicas."""
    for count in counts:
        folder = repository / f"mlp_{count}"
        (folder / "1").mkdir(parents=True)
        onnx.save(mlp(), folder / "1/model.onnx")
        parameters = {"placement": "isolated", "replicas": count, "num_cpus": 0.05}
        rest = "".join(PARAMETER.format(key=key, value=value) for key, value in parameters.items())
        kind = 'backend: "onnxruntime"'
        config = config_of(folder.name, kind, 64, MLP_TENSORS, INSTANCE + ONE_THREAD + rest)
        (folder / "config.pbtxt").write_text(config)


def wait_for_replicas(peer: Peer, counts: list[int]) -> None:
    """Wait until every copy has as many replicas as it shall have."""
    ends_s, running = time.monotonic() + READY_S, {}
    while time.monotonic() < ends_s and not peer.has_ended:
        try:
            with urllib.request.urlopen(f"{peer.http_url}/v2/console/state", timeout=10) as answer:
                running = {row["name"]: row.get("replicas") for row in json.load(answer)["models"]}
        except OSError:
            pass
        if all(running.get(f"mlp_{count}") == count for count in counts):
            return
        time.sleep(0.3)
    raise LoadError(f"not all replicas run: {running}; the server's log is {peer.log}")


class Benchmark:
    """Measures rows, prints each and writes all of them."""

    def __init__(self, home: Home, port: int, duration_s: float, json_file: Path | None, folder: Path) -> None:
        self.home = home
        self.port = port
        self.duration_s = duration_s
        self.json_file = json_file
        write_copies(folder / "reference", [1])
        (folder / "reference/mlp_1").rename(folder / "reference/mlp_onnx")
        self.right = Right(expected("mlp_onnx", folder / "reference"))
        self.rows: list[Measured] = []

    def measure_server(self, repository: Path, ingresses: int, counts: list[int]) -> None:
        """Start a server, and measure each number of replicas by both protocols."""
        write_copies(repository, counts)
        peer = eagleray(self.home, repository, "isolated", [], self.port, None)
        peer.command += ["--model-control-mode", "none", "--ingresses-per-node", str(ingresses)]
        peer.log = peer.log.with_name(f"eagleray-cores-{ingresses}.log")
        run_from(HERE, peer)
        with peer:
            wait_for_replicas(peer, counts)
            for count in counts:
                for protocol in PROTOCOLS:
                    self.measure(peer, ingresses, count, protocol)

    def measure(self, peer: Peer, ingresses: int, replicas: int, protocol: str) -> None:
        clients = MANY_CLIENTS if ingresses >= MANY_INGRESSES else FEW_CLIENTS
        work = Work(f"mlp_{replicas}", protocol, clients, threads=THREADS)
        try:
            run = run_checked(peer, work, self.duration_s, MLP_TENSORS, self.right, self.home.bodies)
        except Exception as error:
            click.echo(f"{ingresses} ingresses, {replicas} replicas, {protocol}: {error!r}")
            return
        first = next((row.run for row in self.rows if row.work.protocol == protocol), run)
        row = Measured(ingresses, replicas, work, run, run.throughput / first.throughput)
        self.rows.append(row)
        click.echo(str(row))  # which flushes
        if self.json_file is not None:
            self.json_file.write_text(json.dumps([asdict(each) for each in self.rows], indent=1))


@click.command(help=__doc__)
@click.option("--ingresses", default="1,2,4,8", show_default=True, callback=numbers)
@click.option(
    "--replicas",
    callback=numbers,
    help="For each number of ingresses, with commas between. [default: as many as ingresses; with 8 of them also 1]",
)
@click.option("--duration", "duration_s", default=4.0, show_default=True, help="Seconds for each measurement.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all rows here.")
@click.option("--port", default=18600, show_default=True, help="HTTP; gRPC and metrics take the next two.")
def main(
    ingresses: list[int], replicas: list[int] | None, duration_s: float, json_file: Path | None, port: int
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped then, too
    home = Home.from_environment()
    with tempfile.TemporaryDirectory(prefix="eagleray-cores-") as folder:
        try:
            install_load_generators({tool for tool in ("h2load", "wrk") if shutil.which(tool) is None})
        except PreparationError as error:
            raise click.ClickException(str(error)) from error
        benchmark = Benchmark(home, port, duration_s, json_file, Path(folder))
        click.echo(f"{available_cores()} cores, load {os.getloadavg()[0]:.1f}\n{HEAD}")
        for count in ingresses:
            try:
                benchmark.measure_server(Path(folder) / str(count), count, replicas or replica_counts(count))
            except (PeerError, LoadError) as error:
                click.echo(f"{count} ingresses: {error}")


if __name__ == "__main__":
    main()
