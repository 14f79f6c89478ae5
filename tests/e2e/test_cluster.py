"""Eagleray on a Ray cluster that runs already: deployed by `serve deploy`, composed by others, joined by `serve`."""

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from examples.held_out import LABELS, held_out_pngs
from tests.e2e import ray_head
from tests.repositories import EXAMPLE_VERSIONS
from tests.serving import ROOT, Client, Process, Server, environment, free_port, run, tensor, wait_until

COMPOSE = Path(__file__).parent / "compose_digits.py"


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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`ray start --head`, in the foreground so that exactly its processes can be stopped."""
    # A short path, for the Unix sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="er-ray-", dir="/tmp"))
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    env = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
    port, dashboard = free_port(), free_port()
    # Ray's workers look here first for modules.
    for name in ("app.py", "deployments.py", "protocol.py"):
        (folder / name).write_text("raise RuntimeError('not for Eagleray')")
    head = Process(
        ray_head.command(folder / "ray", port, dashboard), tmp_path_factory.mktemp("cluster") / "log", env, cwd=folder
    )
    try:
        head.wait_for("Ray runtime started")
        yield Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", env, head)
        started = set(head.descendants())
        os.kill(head.pid, signal.SIGTERM)
        head.exit_code()
        head.assert_none_left(started)
    finally:
        head.kill()
        shutil.rmtree(folder, ignore_errors=True)


def statuses(cluster: Cluster) -> dict[str, set[str]]:
    """Return the status of each application and the statuses of its deployments."""
    done = cluster.serve("status")
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout) or {}
    return {
        name: {application["status"], *(each["status"] for each in application["deployments"].values())}
        for name, application in found.get("applications", {}).items()
    }


EVERYTHING = {name for name, _ in EXAMPLE_VERSIONS} | {"eagleray"}


@pytest.fixture(scope="module")
def deployed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`serve deploy` of the repository's own file but for its ports; returns the address of HTTP."""
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    arguments = config["applications"][0]["args"]
    arguments |= {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    arguments["model_repository"] = [str(ROOT / path) for path in arguments["model_repository"]]
    path = tmp_path_factory.mktemp("deploy") / "serve_config.yaml"
    path.write_text(yaml.safe_dump(config))
    done = cluster.serve("deploy", str(path))
    assert done.returncode == 0, done.stderr + done.stdout
    wait_until(
        lambda: (
            (found := statuses(cluster)).keys() == EVERYTHING
            and all(each == {"RUNNING", "HEALTHY"} for each in found.values())
        ),
        "every application RUNNING and every deployment HEALTHY",
        timeout_s=120,
        poll_s=0.5,
    )
    yield f"127.0.0.1:{arguments['http_port']}"
    done = cluster.serve("shutdown", "-y")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not statuses(cluster), "no application left", timeout_s=60, poll_s=0.5)


def test_deployed_service_is_ready_and_answers(deployed: str) -> None:
    with Client(deployed) as client:
        wait_until(lambda: client.get("/v2/health/ready").status == 200, "ready")
        index = client.request("POST", "/v2/repository/index").json
        assert {(row["name"], row["version"]) for row in index if row["state"] == "READY"} == EXAMPLE_VERSIONS
        answer = client.infer("digits", tensor("IMAGE", "FP32", [1, 64], [0] * 64))
        assert (answer.status, len(answer.json["outputs"][0]["data"])) == (200, 10)


def test_every_model_is_an_application_with_deployments_by_version(cluster: Cluster, deployed: str) -> None:
    found = yaml.safe_load(cluster.serve("status").stdout)["applications"]
    assert set(found["digits"]["deployments"]) == {"v1", "v2"}
    assert set(found["eagleray"]["deployments"]) == {"Ingress", "RepositoryController"}


@pytest.fixture(scope="module")
def composed(cluster: Cluster, deployed: str) -> dict[str, list]:
    """What an application of somebody else's gets from the models' handles."""
    files, _ = held_out_pngs()
    request = json.dumps({"images": [base64.b64encode(file).decode() for file in files[:40]]})
    done = subprocess.run(
        [sys.executable, str(COMPOSE), cluster.address],
        cwd=ROOT,
        env=cluster.env,
        input=request,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_another_application_composes_two_models_by_their_handles(composed: dict[str, list]) -> None:
    labels = held_out_pngs()[1][:40]
    right = sum(LABELS[digit] == label for digit, label in zip(composed["digits"], labels, strict=True))
    assert right >= 38


def test_handles_raise_what_a_client_would_be_told(composed: dict[str, list]) -> None:
    shape, datatype, image, missing = composed["refusals"]
    for kind, text in (shape, datatype, image, missing):
        assert kind, text
    assert "unexpected shape for input 'IMAGE' for model 'digits'. Expected [-1,64], got [1,3]" in shape[1]
    assert "inference input 'IMAGE' data-type is 'INT32', but model 'digits' expects 'FP32'" in datatype[1]
    assert "image 0 of the request is not a readable PNG or JPEG file" in image[1]
    assert "expected 1 inputs but got 0 inputs for model 'digits_preprocess'" in missing[1]


def test_serve_joins_a_running_cluster_and_leaves_it_running(
    cluster: Cluster, example_repository: Path, tmp_path: Path
) -> None:
    """Runs last: it deploys what `serve deploy` deployed before."""
    cluster.serve("shutdown", "-y")
    wait_until(lambda: not statuses(cluster), "no application left", timeout_s=60, poll_s=0.5)
    flags = ("--ray-address", cluster.address, "--placement", "embedded")
    server = Server(example_repository, tmp_path / "log", *flags, env=cluster.env)
    try:
        server.wait_ready()
        assert server.get("/v2/health/ready").status == 200
        assert statuses(cluster)["eagleray"] == {"RUNNING", "HEALTHY"}
        server.stop()
    finally:
        server.kill()
    assert statuses(cluster) == {}
