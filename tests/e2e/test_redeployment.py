"""`serve deploy` again: what it refuses leaves what runs alone, and what it replaces is replaced without a gap."""

import contextlib
import functools
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controller_steps.steps import Steps
from tests.e2e import ray_head
from tests.e2e.deployed_cluster import Cluster, Deployment, running_cluster, serve_pid
from tests.repeating import repeating
from tests.repository_loader.repositories import TENSORS, write
from tests.serving import Client, Process, run, tensor, title_of, wait_until


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """Those of the controllers of the cluster."""
    return Steps(tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, steps: Steps) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "log", **steps.variables()) as started:
        yield started


@pytest.fixture
def own(cluster: Cluster, tmp_path: Path) -> Iterator[Deployment]:
    yield Deployment(cluster, tmp_path)
    cluster.empty()


def status(cluster: Cluster, name: str = "eagleray") -> tuple[str, str]:
    """Return the status of an application and what Serve says of it."""
    found = cluster.applications().get(name, {"status": "", "message": ""})
    return found["status"], found["message"]


def test_what_runs_goes_on_when_a_deployment_is_refused_or_brings_what_cannot_be_read(
    cluster: Cluster, own: Deployment, tmp_path: Path
) -> None:
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
    with asked(own.address) as answers:
        (tmp_path / "packed/simple/config.pbtxt").write_text("what is this")
        own.deploy("packed", log_verbose=1)
        told = wait_until(
            lambda: (found := own.index().get("simple", ("", "")))[1] and found, "the reason", timeout_s=60
        )
    assert told[0] == "READY" and told[1].startswith("it serves on as before the last deployment: "), told
    assert answers.keys() == {"200"}


def test_a_second_eagleray_in_the_cluster_is_refused(cluster: Cluster, own: Deployment) -> None:
    own.deploy("packed", "simple")
    wait_until(lambda: own.index().get("simple") == ("READY", ""), "ready", timeout_s=90)
    own.deploy("packed", also="another")
    wait_until(lambda: status(cluster, "another")[0] == "DEPLOY_FAILED", "it is refused", timeout_s=90)
    deployments = cluster.applications()["another"]["deployments"].values()
    told = "Eagleray runs in this cluster already, as the Serve application 'eagleray'"
    assert any(told in each["message"] for each in deployments)
    assert {own.index()["simple"] for _ in range(20)} == {("READY", "")}


@contextlib.contextmanager
def asked(address: str, *, keeping: int = 0) -> Iterator[Counter[str]]:
    """Have a client connect anew for each request, and others that keep connections until they are told to close them.

    What was answered, or became of the connection, is counted.
    """
    answers: Counter[str] = Counter()
    ended = threading.Event()
    row = [tensor(name, "INT32", [1, 16], [1] * 16) for name in ("INPUT0", "INPUT1")]

    def ask(keeps: bool) -> None:
        while not ended.is_set():
            try:
                with Client(address) as client:
                    closed = False
                    while not closed and not ended.is_set():
                        answer = client.infer("simple", *row)
                        answers["200" if answer.status == 200 else f"{answer.status} {answer.body!r}"] += 1
                        closed = not keeps or answer.headers.get("connection", "").lower() == "close"
            except OSError as error:
                answers[repr(error)] += 1
            if keeps:
                ended.wait(0.01)

    asking = [threading.Thread(target=ask, args=(number > 0,)) for number in range(1 + keeping)]
    for each in asking:
        each.start()
    try:
        yield answers
    finally:
        ended.set()
        for each in asking:
            each.join()


def replace(cluster: Cluster, own: Deployment, **arguments: Any) -> None:
    """Deploy other settings, and wait until Serve says that all runs by them."""
    own.deploy("packed", **arguments)
    wait_until(lambda: status(cluster)[0] == "DEPLOYING", "it begins")
    wait_until(lambda: status(cluster)[0] == "RUNNING", "all are replaced", timeout_s=120)


SLOW_TO_COMPLETE = """
import os, time

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        time.sleep(15 if os.path.exists("HELD_UP") else 0)
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        return []
"""


def test_the_only_ingress_of_a_node_serves_until_another_knows_as_much(
    cluster: Cluster, own: Deployment, steps: Steps, tmp_path: Path
) -> None:
    """The new controller needs longer to read the repository, and what runs, than an ingress waits that is alone."""
    code = SLOW_TO_COMPLETE.replace("HELD_UP", str(tmp_path / "held up"))
    write(tmp_path / "packed", {"slow/config.pbtxt": f'backend: "python" {TENSORS}', "slow/1/model.py": code})
    own.deploy("packed", "simple", ingresses_per_node=1)
    wait_until(lambda: own.index() == dict.fromkeys(("simple", "slow"), ("READY", "")), "ready", timeout_s=90)
    ingress = serve_pid(cluster, "ray::ServeReplica:eagleray:Ingress")
    (tmp_path / "held up").touch()
    states: set[tuple[str, str]] = set()
    with asked(own.address) as answers, repeating(lambda: states.update(own.index().values()), pause_s=0.02):
        own.deploy("packed", ingresses_per_node=1, http_idle_timeout_s=100)
        with steps.failing("status") as failed:
            wait_until(lambda: failed() > 2, "a controller that does not know what runs", timeout_s=90)
        wait_until(lambda: status(cluster)[0] == "RUNNING", "all are replaced", timeout_s=120)
    wait_until(
        lambda: serve_pid(cluster, "ray::ServeReplica:eagleray:Ingress") not in (0, ingress), "the next", timeout_s=60
    )
    assert (set(answers), states) == ({"200"}, {("READY", "")})


def test_ingresses_that_cannot_start_leave_those_that_run_where_they_are(cluster: Cluster, own: Deployment) -> None:
    own.deploy("packed", "simple")
    wait_until(lambda: status(cluster)[0] == "RUNNING" and own.index(), "ready", timeout_s=90)
    with socket.create_server(("127.0.0.1", 0)) as taken, asked(own.address) as answers:
        own.deploy("packed", metrics_port=taken.getsockname()[1])
        told = wait_until(lambda: reason_of_the_ingress(cluster), "why it does not start", timeout_s=90)
        assert "Address already in use" in told
        answered = answers["200"]
        wait_until(lambda: answers["200"] > answered, "an answer")
    assert set(answers) == {"200"}


SLOW_TO_LOAD = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(2)

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return answers
"""


def is_alone(cluster: Cluster, placement: str) -> bool:
    """Whether only what a placement needs is deployed, and runs."""
    groups = {"packed": {"eagleray-packed"}, "embedded": set[str]()}[placement]
    found = cluster.applications()
    return found.keys() - {"eagleray"} == groups and {each["status"] for each in found.values()} == {"RUNNING"}


@pytest.mark.timeout(300)
def test_a_model_answers_and_is_ready_while_another_deployment_has_it_loaded_elsewhere(
    cluster: Cluster, own: Deployment, tmp_path: Path
) -> None:
    """Its replica is replaced first, by other settings, then it goes to other places."""
    for placement in ("isolated", "embedded", "packed"):
        write(
            tmp_path / placement, {"slow/config.pbtxt": f'backend: "python" {TENSORS}', "slow/1/model.py": SLOW_TO_LOAD}
        )
    own.deploy("isolated")
    wait_until(lambda: own.index().get("slow") == ("READY", ""), "ready", timeout_s=90)
    seen: Counter[tuple[Any, ...]] = Counter()
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.02):
            with Client(own.address) as client:
                ready = [client.get(path).status for path in ("/v2/health/ready", "/v2/models/slow/ready")]
                seen[*ready, client.infer("slow", tensor("X", "FP32", [4], [1] * 4)).status, own.index()["slow"]] += 1

    replica = serve_pid(cluster, "ray::ServeReplica:slow:")
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        own.deploy("isolated", model_load_retry_count=2)
        wait_until(lambda: serve_pid(cluster, "ray::ServeReplica:slow:") not in (0, replica), "another replica", 60)
        wait_until(lambda: status(cluster)[0] == "RUNNING", "all are replaced", timeout_s=60)
        for placement in ("embedded", "packed"):
            own.deploy(placement, model_load_retry_count=2)
            wait_until(functools.partial(is_alone, cluster, placement), "it is elsewhere", timeout_s=60)
        count = seen.total()
        wait_until(lambda: seen.total() > count + 20, "answers of its new place")
    finally:
        ended.set()
        asking.join()
    # Each deployment may replace the ingress too, which tells a client that it accepts last that it is not ready.
    assert seen.pop((400, 200, 200, ("READY", "")), 0) <= 3
    assert set(seen) == {(200, 200, 200, ("READY", ""))}


def reason_of_the_ingress(cluster: Cluster) -> str:
    """Return why ingresses do not start, "" while Serve does not say."""
    deployments = cluster.applications()["eagleray"]["deployments"]
    return str(deployments["Ingress"]["message"]) if "Ingress" in deployments else ""


NOTE = {"note": {"string_value": "of a client"}}


def test_of_two_ingresses_of_a_node_one_always_takes_requests(cluster: Cluster, own: Deployment) -> None:
    """What clients have loaded and unloaded, and with which configuration, stays so."""
    explicit = {"model_control_mode": "explicit", "load_model": ["floats"], "ingresses_per_node": 2}
    own.deploy("packed", "simple", "floats", **explicit)
    wait_until(lambda: status(cluster)[0] == "RUNNING" and "floats" in own.index(), "ready", timeout_s=90)
    with Client(own.address) as client:
        assert client.request("POST", "/v2/repository/models/simple/load").status == 200
        config = client.request("GET", "/v2/models/simple/config").json | {"parameters": NOTE}
        load = {"parameters": {"config": json.dumps(config)}}
        assert client.request("POST", "/v2/repository/models/simple/load", load).status == 200
        assert client.request("POST", "/v2/repository/models/floats/unload").status == 200
    with asked(own.address) as answers:
        replace(cluster, own, **explicit, http_idle_timeout_s=100)
    assert own.index().get("simple") == ("READY", "") and own.index().get("floats") != ("READY", "")
    with Client(own.address) as client:
        assert client.request("GET", "/v2/models/simple/config").json["parameters"] == NOTE
    # Each of the two closes once, and who connects in that moment is reset.
    others = answers - Counter({"200": answers["200"]})
    assert others.total() <= 2 and all(answer.startswith("Connection") for answer in others), answers


def test_a_node_that_drains_loses_no_request(cluster: Cluster, own: Deployment, tmp_path: Path) -> None:
    """As worker pods do before they end (deploy/kubernetes)."""
    node = Process(ray_head.node_command(cluster.address), tmp_path / "node", cluster.env)
    try:
        node.wait_for("Ray runtime started")
        own.deploy("packed", "simple", ingresses_per_node=1, exit_timeout_secs=1)
        ingress = wait_until(
            lambda: next((each for each in node.descendants() if "Ingress" in title_of(each)), None),
            "its ingress",
            timeout_s=90,
        )
        wait_until(lambda: status(cluster)[0] == "RUNNING" and own.index(), "ready", timeout_s=90)
        replicas = cluster.applications()["eagleray"]["deployments"]["Ingress"]["replicas"]
        (node_id,) = [each["node_id"] for each in replicas if each["pid"] == ingress.pid]
        reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test")
        with asked(own.address, keeping=6) as answers:
            ray = (str(ray_head.BIN / "ray"), "drain-node", "--address", cluster.address, "--node-id", node_id)
            drained = run(*ray, *reason, "--deadline-remaining-seconds", "15", env=cluster.env)
            assert drained.returncode == 0, drained.stderr
            wait_until(lambda: not ingress.is_running(), "its end", timeout_s=60)
        assert set(answers) == {"200"}
    finally:
        node.kill()
