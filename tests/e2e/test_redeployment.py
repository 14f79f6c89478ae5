"""`serve deploy` again: what it refuses leaves what runs alone, and what it replaces is replaced without a gap."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deployed_cluster import Cluster, Deployment, running_cluster, serve_pid
from tests.serving import Client, tensor, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "log") as started:
        yield started


@pytest.fixture
def own(cluster: Cluster, tmp_path: Path) -> Iterator[Deployment]:
    yield Deployment(cluster, tmp_path)
    cluster.empty()


def status(cluster: Cluster, name: str = "eagleray") -> tuple[str, str]:
    """Return the status of an application and what Serve says of it."""
    found = cluster.applications().get(name, {"status": "", "message": ""})
    return found["status"], found["message"]


def test_what_runs_goes_on_when_a_deployment_is_refused(cluster: Cluster, own: Deployment) -> None:
    own.deploy("packed", "simple")
    wait_until(lambda: own.index().get("simple") == ("READY", ""), "ready", timeout_s=90)
    ingress = serve_pid(cluster, "ray::ServeReplica:eagleray:Ingress")
    tls = {"http_use_ssl": True, "http_server_cert": "/nonexistent.pem", "http_server_key": "/nonexistent.pem"}
    for wrong, reason in ((tls, "/nonexistent.pem"), ({"htttp_port": 8000}, "htttp_port")):
        own.deploy("packed", **wrong)
        wait_until(lambda: status(cluster)[0] == "DEPLOY_FAILED", "it is refused", timeout_s=60)
        assert reason in status(cluster)[1]
        assert own.index()["simple"] == ("READY", "")
    assert serve_pid(cluster, "ray::ServeReplica:eagleray:Ingress") == ingress
    own.deploy("packed")
    wait_until(lambda: status(cluster)[0] == "RUNNING", "it runs as before", timeout_s=90)
    assert own.index()["simple"] == ("READY", "")


def test_a_second_eagleray_in_the_cluster_is_refused(cluster: Cluster, own: Deployment) -> None:
    own.deploy("packed", "simple")
    wait_until(lambda: own.index().get("simple") == ("READY", ""), "ready", timeout_s=90)
    own.deploy("packed", also="another")
    wait_until(lambda: status(cluster, "another")[0] == "DEPLOY_FAILED", "it is refused", timeout_s=90)
    deployments = cluster.applications()["another"]["deployments"].values()
    told = "Eagleray runs in this cluster already, as the Serve application 'eagleray'"
    assert any(told in each["message"] for each in deployments)
    assert {own.index()["simple"] for _ in range(20)} == {("READY", "")}


def test_of_two_ingresses_of_a_node_one_always_takes_requests(cluster: Cluster, own: Deployment) -> None:
    own.deploy("packed", "simple", ingresses_per_node=2)
    wait_until(lambda: status(cluster)[0] == "RUNNING" and own.index(), "ready", timeout_s=90)
    answers: list[str] = []
    replaced = threading.Event()

    def ask() -> None:
        row = [tensor(name, "INT32", [1, 16], [1] * 16) for name in ("INPUT0", "INPUT1")]
        while not replaced.is_set():
            try:
                with Client(own.address) as client:
                    answer = client.infer("simple", *row)
                    answers.append("200" if answer.status == 200 else f"{answer.status} {answer.body!r}")
            except OSError as error:
                answers.append(repr(error))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        own.deploy("packed", ingresses_per_node=2, http_idle_timeout_s=100)
        wait_until(lambda: status(cluster)[0] == "DEPLOYING", "it begins")
        wait_until(lambda: status(cluster)[0] == "RUNNING", "all are replaced", timeout_s=120)
    finally:
        replaced.set()
        asking.join()
    # Each of the two closes once, and who connects in that moment is reset.
    others = [answer for answer in answers if answer != "200"]
    assert len(others) <= 2 and all(answer.startswith("Connection") for answer in others), Counter(answers)
