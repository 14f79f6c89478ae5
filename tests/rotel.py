"""A real collector of OpenTelemetry's data in a process of its own: Rotel, as its package on PyPI has it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.otlp_collector import Collector
from tests.serving import Process, free_port, wait_until


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


PACKAGE = find_spec("rotel")
needs_rotel = pytest.mark.skipif(PACKAGE is None, reason="the package rotel is not installed")


@contextmanager
def forwarding(log: Path, onward: Collector) -> Iterator[str]:
    """Run one that sends on what it gets, as it understands it; yields its URL, or the other's where it is missing."""
    if PACKAGE is None or PACKAGE.origin is None:
        yield onward.url
        return
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [str(Path(PACKAGE.origin).with_name("rotel-agent")), "start", "--log-file", str(log.with_suffix(".file"))]
    command += ["--pid-file", str(log.with_suffix(".pid")), "--otlp-http-endpoint", address]
    command += ["--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--exporter", "otlp"]
    command += ["--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", onward.url.removesuffix("/v1/traces")]
    process = Process(command, log)
    try:
        wait_until(lambda: process.is_running() and listens(port), "Rotel")
        yield f"http://{address}/v1/traces"
    finally:
        process.kill()
