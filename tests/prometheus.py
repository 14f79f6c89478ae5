"""A real Prometheus in a process of its own, and a server's load for it to see."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from examples.held_out import held_out_pngs
from tests.repeating import repeating
from tests.serving import Client, Process, Server, environment, free_port, tensor

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (it is in Debian's package of that name)"
)
SCRAPE_S = 2


class Prometheus(Process):
    """Scrapes one address as the job `eagleray`, and what `jobs` say, every two seconds, with rules."""

    def __init__(self, folder: Path, target: str, rules: Path, *jobs: dict[str, Any], credentials: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        job: dict[str, Any] = {"job_name": "eagleray", "static_configs": [{"targets": [target]}]}
        if credentials:
            job["authorization"] = {"credentials": credentials}
        times = {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s", "evaluation_interval": "1s"}
        config = {"global": times, "rule_files": [str(rules)], "scrape_configs": [job, *jobs]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.address = f"127.0.0.1:{free_port()}"
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        super().__init__([*command, f"--web.listen-address={self.address}"], folder / "log", environment())

    def wait_ready(self) -> "Prometheus":
        self.wait_for("Server is ready to receive web requests")
        return self

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        return self._ask("query", query=expression)

    def query_range(self, expression: str, end: float, seconds: float, step_s: float) -> list[dict[str, Any]]:
        """Return the series of so many seconds before a time since the epoch."""
        return self._ask("query_range", query=expression, start=str(end - seconds), end=str(end), step=str(step_s))

    def _ask(self, what: str, **parameters: str) -> list[dict[str, Any]]:
        with Client(self.address) as client:
            answer = client.get(f"/api/v1/{what}?{urlencode(parameters)}").json
        assert answer["status"] == "success", f"{parameters}: {answer}"
        return list(answer["data"]["result"])

    def close(self) -> None:
        """Stop it; what it has stored is of no use to anybody."""
        self.kill()


@contextmanager
def prometheus(
    folder: Path, target: str, rules: Path, *jobs: dict[str, Any], credentials: str = ""
) -> Iterator[Prometheus]:
    """Run one."""
    started = Prometheus(folder, target, rules, *jobs, credentials=credentials)
    try:
        yield started.wait_ready()
    finally:
        started.close()


@contextmanager
def samples(page: Callable[[], bytes]) -> Iterator[str]:
    """Serve a page of metrics; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def load(server: Server, pause_s: float = 0.02) -> Iterator[None]:
    """Have clients ask for what panels show: an ensemble, a batch, a cached answer, errors, over HTTP and gRPC."""
    png, body = held_out_pngs()[0][0], {"inputs": []}
    rows = [tensor(name, "INT32", [2, 16], [1] * 32) for name in ("INPUT0", "INPUT1")]
    with server.client() as client, tritonclient.grpc.InferenceServerClient(_grpc(server)) as grpc:
        image = tritonclient.grpc.InferInput("IMAGE_BYTES", [1, 1], "BYTES")
        image.set_data_from_numpy(np.array([[png]], object))

        def http() -> None:
            client.infer("simple", *rows)
            client.infer("cached", tensor("X", "INT32", [1], [7]))
            client.infer("two_replicas", tensor("SECONDS", "FP32", [1], [0]))
            client.infer("failing", tensor("MODE", "BYTES", [1, 1], ["error"]))
            client.request("POST", "/v2/models/nobody/infer", body)

        def classify() -> None:
            with suppress(InferenceServerException):  # a replica may be gone for a moment
                grpc.infer("digits_pipeline", [image])

        with repeating(http, classify, pause_s=pause_s):
            yield


def _grpc(server: Server) -> str:
    return server.wait_for(r"gRPC\s+(\S+)")[1]
