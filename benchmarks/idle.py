"""`python -m benchmarks.idle`: what a service costs while nobody asks anything, beside a Ray Serve that is empty.

Both idle beside each other for the same seconds, so that what the machine does meanwhile falls on both.
"""

import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.home import Home
from benchmarks.many_models import write_small_models
from benchmarks.measure import processes_of
from benchmarks.peers import Peer, PeerError, eagleray

SETTLE_S = 15.0


def bare_serve(home: Home, port: int) -> Peer:
    """Ray with an empty Serve application."""
    command = [sys.executable, "-m", "benchmarks.bare_serve", str(port)]
    return Peer("bare Ray Serve", command, port, home.logs / "bare-serve.log", {}, ready_within_s=60)


def cpu_s_by_name(peer: Peer) -> dict[str, float]:
    """Return the CPU time of a server's processes by what they are called, in seconds."""
    used: dict[str, float] = {}
    for process in processes_of(peer.mark):
        name = name_of(process.pid)
        used[name] = used.get(name, 0.0) + process.cpu_s
    return used


def name_of(pid: int) -> str:
    """Return the title of one of Ray's workers, or else the program's name."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
    except OSError:
        return ""
    if not words or words[0].startswith(("ray::", "ray-")):
        return words[0].split(".")[0] if words else ""
    return next((Path(word).name for word in words[1:] if "/" in word and word.endswith(".py")), Path(words[0]).name)


def idle_cores(peers: list[Peer], duration_s: float) -> list[dict[str, float]]:
    """Return what each server's processes use, in percent of a core."""
    before, started_s = [cpu_s_by_name(peer) for peer in peers], time.monotonic()
    time.sleep(duration_s)
    after, elapsed_s = [cpu_s_by_name(peer) for peer in peers], time.monotonic() - started_s
    return [
        {name: 100 * (used_s - old.get(name, 0.0)) / elapsed_s for name, used_s in new.items()}
        for old, new in zip(before, after, strict=True)
    ]


@click.command(help=__doc__)
@click.option("--models", "count", default=6, show_default=True, help="Small ONNX models to serve.")
@click.option("--placement", default="auto", show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--duration", "duration_s", default=12.0, show_default=True, help="Seconds for each measurement.")
@click.option("--port", default=18100, show_default=True, help="HTTP; the next ones are taken too.")
def main(count: int, placement: str, rounds: int, duration_s: float, port: int) -> None:
    home = Home.from_environment()
    repository = Path(tempfile.mkdtemp(prefix="eagleray-idle-"))
    try:
        write_small_models(repository, count)
        with ExitStack() as stack:
            peers = [eagleray(home, repository, placement, [], port, None), bare_serve(home, port + 10)]
            for peer in peers:
                stack.enter_context(peer)
            time.sleep(SETTLE_S)
            measured = [idle_cores(peers, duration_s) for _ in range(rounds)]
    except PeerError as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(repository)
    for number, peer in enumerate(peers):
        uses = [each[number] for each in measured]
        click.echo(f"{peer.name}: {statistics.median(sum(use.values()) for use in uses):.1f} % of a core")
        for name in sorted(uses[0], key=lambda name: -uses[0][name]):
            click.echo(f"  {statistics.median(use.get(name, 0.0) for use in uses):5.2f} {name}")
    extra = statistics.median(sum(ours.values()) - sum(bare.values()) for ours, bare in measured)
    click.echo(f"{count} models, {placement}: {extra:+.1f} % of a core beside an empty Ray Serve")


if __name__ == "__main__":
    main()
