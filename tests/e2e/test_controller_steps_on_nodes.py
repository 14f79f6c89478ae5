"""The controller dies at steps of a reload and of a canary on two nodes, and with the node that it runs on."""

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.controller_steps.asking import Addresses
from tests.controller_steps.bystanders import write_bystanders
from tests.controller_steps.cluster import FAILING, Cluster, asked_beside, parameter, write
from tests.controller_steps.operations import Operation
from tests.controller_steps.steps import Steps
from tests.e2e import test_fault_campaign as campaign
from tests.e2e.test_controller_steps import NUMBERS, traffic, walks
from tests.serving import CONTROLLER, free_port, run, wait_until

pytestmark = [walks, pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make soak")]

ON_EACH = parameter("replicas", 2) + parameter("num_cpus", 0.1)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[campaign.Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="er-ray-", dir="/tmp"))
    nodes = campaign.Cluster(folder, tmp_path_factory.mktemp("nodes"))
    try:
        yield nodes
    finally:
        nodes.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(nodes: campaign.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and a node of one CPU each, with an ingress each, and a replica of both models."""
    root, steps = tmp_path_factory.mktemp("repository"), Steps(tmp_path_factory.mktemp("steps"))
    bystanders = write_bystanders(root, campaign.ONE_PER_NODE)
    write(root, "model", 1, config=ON_EACH)
    for version in (1, 2, 3):
        write(root, "shared", version, version, "version_policy { all {} }" + parameter("num_cpus", 0.01))
    (root / "shared/3/model.py").write_text(FAILING)
    nodes.env |= steps.env()
    nodes.start()
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    settings = ports | {"model_repository": [str(root)], "exit_timeout_secs": 1, "ingresses_per_node": 1}
    settings |= {"model_control_mode": "explicit", "load_model": [*bystanders, "model", "shared"]}
    settings |= {"health_check_period_s": 0.5}
    done = run(sys.executable, "-c", campaign.DEPLOY, nodes.address, json.dumps(settings), env=nodes.env, timeout_s=180)
    assert done.returncode == 0, done.stderr + done.stdout
    wait_until(lambda: campaign.whole(nodes, ports["http_port"]), "two replicas and two ingresses", 120, 0.5)
    addresses = Addresses(f"127.0.0.1:{ports['http_port']}", f"127.0.0.1:{ports['grpc_port']}")
    cluster = Cluster(
        addresses, root, lambda: [*nodes.head.descendants(), *nodes.node.descendants()], steps, bystanders
    )
    wait_until(lambda: {cluster.get("/v2/health/ready").status for _ in range(10)} == {200}, "all models", 60)
    with asked_beside(cluster):
        yield cluster


def reload(cluster: Cluster, before: int, after: int) -> Operation:
    """Load files that have changed, which replicas on both nodes do."""
    return Operation(
        "reload on two nodes",
        lambda: cluster.control("model", "load"),
        lambda: cluster.ready("model") == ["1"] and cluster.replicas("model") == 2,
        model="model",
        before={before},
        after={after},
        last={after},
        prepare=lambda: write(cluster.root, "model", after, config=ON_EACH),
    )


def test_through_a_reload_and_a_canary(cluster: Cluster) -> None:
    cluster.control("shared", "traffic", {"weights": {"1": 1}})
    cluster.walk.through([reload(cluster, 1, 2), reload(cluster, 2, 1), *traffic(cluster)], NUMBERS or [1, 2, 3, 4, 5])
    assert cluster.walk.walked.wrong == []


def test_the_node_of_the_controller_dies(cluster: Cluster, nodes: campaign.Cluster) -> None:
    """What it was told happens all the same, also if the ingress that was told has died too."""

    def on_the_node() -> bool:
        if nodes.pids(CONTROLLER, nodes.node):
            return True
        for pid in (old := nodes.pids(CONTROLLER)):
            campaign.kill(pid)
        wait_until(lambda: set(nodes.pids(CONTROLLER)) - set(old), "another controller", 60)
        return False

    wait_until(on_the_node, "a controller that is not on the head", 240)
    write(cluster.root, "model", 9, config=ON_EACH)

    def load() -> None:
        try:
            answer = cluster.post("/v2/repository/models/model/load")
            if answer.status != 200:  # a replica that was to take it died with the node: it may be repeated at once
                assert "died" in answer.error, answer.body
                cluster.control("model", "load")
        except (OSError, HTTPException) as error:
            print(f"the ingress that was told has died too: {error!r}")

    cluster.steps.arm([])
    thread = threading.Thread(target=load)
    thread.start()
    # A step is counted before it is done: the next one says that it was.
    wait_until(lambda: "stores" in [step.name for step in cluster.steps.done()[:-1]], "a load that is stored")
    nodes.node.kill()
    thread.join(130)
    assert not thread.is_alive()
    wait_until(lambda: {cluster.answer("model") for _ in range(10)} == {9}, "the files of the load", 120)
    print(f"the controller's node died after {len(cluster.steps.done())} steps")
    wait_until(lambda: cluster.ready("model") == ["1"] and cluster.ready("shared") == ["1", "2", "3"], "the index", 60)
