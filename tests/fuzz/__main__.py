"""Runs a campaign against a server that is given, or that is started for it; exit code 1 on a violation.

A given server needs the models of `tests.repositories.write_small_models`; one that is started has small limits.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.campaign import run
from tests.hostile.http_case import FLAGS
from tests.hostile.watch import Watch, grpc_address
from tests.repositories import write_small_models
from tests.serving import Server


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=30_000, help="inputs to try at most")
    parser.add_argument("--seconds", type=float, default=300.0, help="time to take at most")
    parser.add_argument("--seed", type=int, default=None, help="repeats a campaign; random without it")
    parser.add_argument("--placement", default="embedded", help="placement of the server that is started")
    parser.add_argument("--url", help="host:port of a running server's HTTP")
    parser.add_argument("--grpc-url", help="host:port of its gRPC")
    parser.add_argument("--pid", type=int, action="append", default=[], help="its process; may be given several times")
    arguments = parser.parse_args()
    if bool(arguments.url) != bool(arguments.grpc_url):
        parser.error("--url and --grpc-url go together")
    return arguments


@contextmanager
def _watch(arguments: argparse.Namespace) -> Iterator[Watch]:
    if arguments.url:
        watch = Watch(arguments.url.removeprefix("http://"), arguments.grpc_url, arguments.pid)
        try:
            yield watch
        finally:
            watch.close()
        return
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        repository.mkdir()
        write_small_models(repository)
        flags = ("--placement", arguments.placement, "--num-cpus", "4", "--no-dashboard", *FLAGS)
        server = Server(repository, Path(folder) / "log", *flags)
        try:
            server.wait_ready()
            watch = Watch(server.address, grpc_address(server.log()), [server.pid])
            yield watch
            watch.close()
            server.stop()
        finally:
            server.kill()


def main() -> int:
    """Run, and print what was tried and found."""
    arguments = _arguments()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    with _watch(arguments) as watch:
        result = run(watch, arguments.count, arguments.seconds, seed)
    print("\n".join(result.lines()))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
