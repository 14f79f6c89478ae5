"""A Ray cluster that runs already, and what is deployed on it: for tests of both."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import ray_head
from tests.repositories import write_small_models
from tests.serving import ROOT, Answer, Client, Process, free_port, run, title_of, wait_until


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster of one node, closed by a token of its own."""

    address: str
    dashboard: str
    env: dict[str, str]
    head: Process

    def serve(self, *command: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run Ray Serve's own command line."""
        return run(
            str(ray_head.BIN / "serve"), *command, "--address", self.dashboard, env=self.env, timeout_s=timeout_s
        )

    def wait_for_log(self, text: str) -> None:
        """Wait until a log of Serve's has a text."""
        logs = Path(self.env["RAY_AUTH_TOKEN_PATH"]).parent / "ray" / "session_latest" / "logs" / "serve"
        wait_until(lambda: any(text in log.read_text() for log in logs.glob("*.log")), text)

    def ask(self, method: str, body: Any = None) -> Answer:
        """Ask Serve's REST API, as its command line does, without a process that imports Ray each time."""
        token = Path(self.env["RAY_AUTH_TOKEN_PATH"]).read_text()
        with Client(self.dashboard.removeprefix("http://"), timeout_s=90.0) as client:
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            return client.request(method, "/api/serve/applications/", body, headers)

    def answers(self) -> bool:
        """Return whether the dashboard is there to be asked."""
        try:
            return self.ask("GET").status == 200
        except OSError:
            return False

    def applications(self) -> dict[str, Any]:
        """Return what Serve says of each application."""
        answer = self.ask("GET")
        assert answer.status == 200, answer.body
        return dict(answer.json["applications"])

    def empty(self) -> None:
        """Have Serve end all of its applications, and wait until it has."""
        answer = self.ask("DELETE")
        assert answer.status == 200, answer.body
        wait_until(lambda: not self.applications(), "no application left", timeout_s=60)


@contextlib.contextmanager
def running_cluster(log: Path, **variables: str) -> Iterator[Cluster]:
    """`eagleray ray start --head`, in the foreground so that exactly its processes can be stopped."""
    # A short path, for the Unix sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="er-ray-", dir="/tmp"))
    env = ray_head.closed_environment(folder, **variables)
    port, dashboard = free_port(), free_port()
    # Ray's workers look here first for modules.
    for name in ("app.py", "deployments.py", "protocol.py"):
        (folder / name).write_text("raise RuntimeError('not for Eagleray')")
    head = Process(ray_head.command(folder / "ray", port, dashboard, ray=ray_head.OURS), log, env, cwd=folder)
    try:
        head.wait_for("Ray runtime started")
        cluster = Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", env, head)
        wait_until(cluster.answers, "the dashboard", timeout_s=60)
        yield cluster
        started = set(head.descendants())
        os.kill(head.pid, signal.SIGTERM)
        head.exit_code()
        head.assert_none_left(started)
    finally:
        head.kill()
        shutil.rmtree(folder, ignore_errors=True)


def statuses(cluster: Cluster) -> dict[str, set[str]]:
    """Return the status of each application and the statuses of its deployments."""
    return {
        name: {application["status"], *(each["status"] for each in application["deployments"].values())}
        for name, application in cluster.applications().items()
    }


ASKED = """
import json
import sys
import ray
from ray.experimental.internal_kv import _internal_kv_get
from tests.serving import wait_until

def asked():
    return json.loads(_internal_kv_get(b"autoscaler_resource_request") or b"null")

def right():
    bundles = asked() or []
    return all(each in bundles for each in wanted) if wanted else not bundles

ray.init(address=sys.argv[1], log_to_driver=False)
wanted = json.loads(sys.argv[2])
wait_until(right, f"{wanted} asked for", timeout_s=60)
print(json.dumps(asked()))
"""


def nodes_asked_for(cluster: Cluster, *wanted: dict[str, float]) -> list[dict[str, float]] | None:
    """Wait until Ray's autoscaler would have these bundles, or none; returns all that it would, None if nobody asked."""
    asked = run(sys.executable, "-c", ASKED, cluster.address, json.dumps(wanted), env=cluster.env, timeout_s=90)
    assert asked.returncode == 0, asked.stderr
    found: list[dict[str, float]] | None = json.loads(asked.stdout.splitlines()[-1])
    return found


def script(cluster: Cluster, code: str, *names: str) -> None:
    """Run Python as a user of the cluster would."""
    done = run(sys.executable, "-c", code, cluster.address, *names, env=cluster.env, timeout_s=90)
    assert done.returncode == 0, done.stderr


def serve_pid(cluster: Cluster, title: str) -> int:
    """Return the process of a deployment's only replica, 0 when there is none."""
    found = [process.pid for process in cluster.head.descendants() if title in title_of(process)]
    return found[0] if len(found) == 1 else 0


def index(client: Client) -> dict[str, tuple[str, str]]:
    """Return the state of each model, and the reason for it."""
    answer = client.request("POST", "/v2/repository/index")
    return {row["name"]: (row.get("state", ""), row.get("reason", "")) for row in answer.json if "state" in row}


class Deployment:
    """`serve deploy` again and again, on the same ports."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
        self.address = f"127.0.0.1:{self._ports['http_port']}"

    def deploy(self, placement: str, *models: str, config: str = "", also: str = "", **arguments: Any) -> None:
        """Deploy a repository of these small models, with something more in their configurations.

        `also` is the name of a second application that is to be the same.
        """
        everything, repository = self._folder / "everything", self._folder / placement
        if not everything.exists():
            write_small_models(everything)
        for model in models:
            shutil.copytree(everything / model, repository / model)
            with (repository / model / "config.pbtxt").open("a") as text:
                text.write(config)
        deployed = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
        (application,) = deployed["applications"]
        application["args"] |= (
            self._ports
            | arguments
            | {
                "model_repository": [str(repository)],
                "placement": placement,
            }
        )
        if also:
            deployed["applications"].append(application | {"name": also})
        answer = self._cluster.ask("PUT", deployed)
        assert answer.status == 200, answer.body

    def index(self) -> dict[str, tuple[str, str]]:
        """Return the index, nothing while the ingress does not know it."""
        try:
            with Client(self.address) as client:
                return index(client)
        except (OSError, AttributeError, TypeError):
            return {}
