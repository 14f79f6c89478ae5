"""Eagleray on a Ray cluster that runs already: deployed by `serve deploy`, composed by others, joined by `serve`."""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from examples.held_out import LABELS, held_out_pngs
from tests.e2e import ray_head
from tests.e2e.deployed_cluster import (
    Cluster,
    Deployment,
    nodes_asked_for,
    running_cluster,
    script,
    serve_pid,
    statuses,
)
from tests.e2e.test_gpus import CONFIG as GPU_CONFIG
from tests.e2e.test_gpus import MODEL as GPU_MODEL
from tests.repositories import LOADABLE_EXAMPLE_VERSIONS, needs_torch, write_examples
from tests.repository_loader.repositories import TENSORS, write
from tests.serving import (
    CONTROLLER,
    EAGLERAY,
    ROOT,
    Client,
    Process,
    Server,
    free_port,
    run,
    tensor,
    title_of,
    wait_until,
)

COMPOSE = Path(__file__).parent / "compose_digits.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(
        tmp_path_factory.mktemp("cluster") / "log", EAGLERAY_HTTP_PROT="9000", **ray_head.DEAD_SOON
    ) as started:
        yield started


EVERYTHING = {"digits_preprocess", "eagleray-packed", "eagleray"}
ISOLATED = 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }'


@pytest.fixture(scope="module")
def deployed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`serve deploy` of the repository's own file but for its ports, and for a step that is isolated.

    Returns the address of HTTP.
    """
    folder = tmp_path_factory.mktemp("deploy")
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    arguments = config["applications"][0]["args"]
    arguments |= {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    assert arguments["model_repository"] == ["examples/model_repository"]
    repository = write_examples(folder / "models")
    with (repository / "digits_preprocess/config.pbtxt").open("a") as text:
        text.write(ISOLATED)
    arguments["model_repository"] = [str(repository)]
    path = folder / "serve_config.yaml"
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
    )
    yield f"127.0.0.1:{arguments['http_port']}"
    done = cluster.serve("shutdown", "-y")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not statuses(cluster), "no application left", timeout_s=60)


def test_workers_of_a_node_that_eagleray_started_are_forked(cluster: Cluster, deployed: str) -> None:
    replicas = [each for each in cluster.head.descendants() if title_of(each).startswith("ray::ServeReplica:eagleray")]
    parents = {title_of(parent) for each in replicas if (parent := each.parent())}
    assert len(replicas) > 2 and len(parents) == 1
    assert "worker_launcher.py" in parents.pop()


@needs_torch
def test_deployed_service_is_ready_and_answers(deployed: str) -> None:
    with Client(deployed) as client:
        wait_until(lambda: client.get("/v2/health/ready").status == 200, "ready")
        index = client.request("POST", "/v2/repository/index").json
        assert {(row["name"], row["version"]) for row in index if row["state"] == "READY"} == LOADABLE_EXAMPLE_VERSIONS
        answer = client.infer("digits", tensor("IMAGE", "FP32", [1, 64], [0] * 64))
        assert (answer.status, len(answer.json["outputs"][0]["data"])) == (200, 10)


def test_log_names_a_mistyped_variable(cluster: Cluster, deployed: str) -> None:
    cluster.wait_for_log("the environment variable EAGLERAY_HTTP_PROT is no setting; did you mean EAGLERAY_HTTP_PORT?")


def test_doctor_compares_the_nodes(cluster: Cluster, deployed: str) -> None:
    done = run(EAGLERAY, "doctor", "--json", "--ray-address", cluster.address, env=cluster.env, timeout_s=120)
    findings = [finding["text"] for finding in json.loads(done.stdout) if finding["check"] == "nodes"]
    assert findings == ["1 node with the same versions"], done.stderr


def test_logs_are_found_where_serve_writes_them(cluster: Cluster, deployed: str) -> None:
    done = run(EAGLERAY, "logs", "digits_preprocess", "--ray-address", cluster.address, env=cluster.env, timeout_s=120)
    line = r"(?m)^\[\S+\] I.*successfully loaded 'digits_preprocess' version 1\"$"
    assert re.search(line, done.stdout), done.stdout + done.stderr


def test_isolated_models_are_applications_with_deployments_by_version_and_packed_ones_share_one(
    cluster: Cluster, deployed: str
) -> None:
    found = yaml.safe_load(cluster.serve("status").stdout)["applications"]
    assert set(found["digits_preprocess"]["deployments"]) == {"v1"}
    assert set(found["eagleray-packed"]["deployments"]) == {"models"}
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
    assert [kind for kind, _ in composed["refusals"]] == ["InvalidArgument"] * 4
    assert "unexpected shape for input 'IMAGE' for model 'digits'. Expected [-1,64], got [1,3]" in shape[1]
    assert "inference input 'IMAGE' data-type is 'INT32', but model 'digits' expects 'FP32'" in datatype[1]
    assert "image 0 of the request is not a readable PNG or JPEG file" in image[1]
    assert "expected 1 inputs but got 0 inputs for model 'digits_preprocess'" in missing[1]


def test_a_handle_call_that_is_wrong_fails_alone(composed: dict[str, list]) -> None:
    assert composed["together"] == ["", "input 'IMAGE' is no array: its rows are not of one length", ""]


@needs_torch
def test_serve_joins_a_running_cluster_and_leaves_it_running(
    cluster: Cluster, example_repository: Path, tmp_path: Path
) -> None:
    """Runs after what needs `deployed`: it deploys what `serve deploy` deployed before."""
    cluster.empty()
    script(cluster, THEIRS, "theirs:/")
    flags = ("--ray-address", cluster.address, "--placement", "embedded")
    server = Server(example_repository, tmp_path / "log", *flags, env=cluster.env)
    try:
        server.wait_ready()
        assert server.get("/v2/health/ready").status == 200
        assert statuses(cluster)["eagleray"] == {"RUNNING", "HEALTHY"}
        others = ("--model-repository", str(example_repository), "--http-port", "0", "--grpc-port", "0")
        second = run(EAGLERAY, "serve", *others, "--metrics-port", "0", *flags, env=cluster.env)
        assert second.returncode == 1
        assert "Eagleray runs in this cluster already" in second.stderr
        assert server.get("/v2/health/ready").status == 200
        server.stop()
        assert set(statuses(cluster)) == {"theirs"}
    finally:
        server.kill()
    script(cluster, DELETE, "theirs")
    assert statuses(cluster) == {}


THEIRS = """
import sys
import ray
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1)
class Theirs:
    def __call__(self):
        return "theirs"

ray.init(address=sys.argv[1], log_to_driver=False)
for each in sys.argv[2:]:
    name, _, route = each.partition(":")
    serve.run(Theirs.bind(), name=name, route_prefix=route or None)
"""
DELETE = """
import sys
import ray
from ray import serve

ray.init(address=sys.argv[1], log_to_driver=False)
for name in sys.argv[2:]:
    serve.delete(name)
"""


@pytest.fixture
def own(cluster: Cluster, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on a cluster without any application, and none is left."""
    cluster.empty()
    yield Deployment(cluster, tmp_path)
    cluster.empty()


def applications(cluster: Cluster, wanted: set[str]) -> None:
    """Wait until exactly these run."""
    wait_until(lambda: set(statuses(cluster)) == wanted, f"only {wanted}", timeout_s=90)


def test_what_eagleray_deployed_it_ends_and_nothing_else(cluster: Cluster, own: Deployment) -> None:
    script(cluster, THEIRS, "halves", "theirs")

    own.deploy("isolated", "simple", "halves", "floats")
    wait_until(lambda: own.index().get("simple", ("",))[0] == "READY", "ready", timeout_s=90)
    states = wait_until(lambda: (found := own.index())["floats"][0] == "READY" and found, "all of them", timeout_s=60)
    assert states["halves"][0] == "UNAVAILABLE"
    assert states["halves"][1].startswith("the Serve application 'halves' is not Eagleray's")
    applications(cluster, {"eagleray", "simple", "floats", "halves", "theirs"})

    # Another repository and another placement: the old applications go, the user's stay.
    own.deploy("packed", "simple", "flags")
    applications(cluster, {"eagleray", "eagleray-packed", "halves", "theirs"})
    wait_until(lambda: own.index().keys() == {"simple", "flags"}, "the new repository", timeout_s=60)

    # A controller that is replaced after a crash goes on with what runs.
    replica = wait_until(lambda: serve_pid(cluster, "ray::ServeReplica:eagleray-packed"), "its replica", timeout_s=60)
    controller = serve_pid(cluster, CONTROLLER)
    os.kill(controller, signal.SIGKILL)
    wait_until(
        lambda: serve_pid(cluster, CONTROLLER) not in (0, controller),
        "a new controller",
        timeout_s=60,
    )
    wait_until(lambda: own.index().get("flags") == ("READY", ""), "ready", timeout_s=60)
    assert serve_pid(cluster, "ray::ServeReplica:eagleray-packed") == replica
    applications(cluster, {"eagleray", "eagleray-packed", "halves", "theirs"})

    script(cluster, DELETE, "eagleray")
    applications(cluster, {"halves", "theirs"})
    assert all(each == {"RUNNING", "HEALTHY"} for each in statuses(cluster).values())


def test_nodes_are_asked_for_as_long_as_a_model_waits_for_them(cluster: Cluster, own: Deployment) -> None:
    """Ray's autoscaler would keep them for ever."""
    own.deploy("isolated", "simple")
    wait_until(lambda: own.index().get("simple") == ("READY", ""), "ready", timeout_s=90)
    assert not nodes_asked_for(cluster)
    for model, placement in (("halves", "packed"), ("floats", "auto")):
        own.deploy(placement, model, config='parameters { key: "eagleray.num_cpus" value { string_value: "99" } }')
        nodes_asked_for(cluster, {"CPU": 99})
        if model == "halves":
            own.deploy("isolated", "flags")
        else:
            script(cluster, DELETE, "eagleray")
        assert nodes_asked_for(cluster) == []


def test_name_that_becomes_free_is_taken(cluster: Cluster, own: Deployment) -> None:
    script(cluster, THEIRS, "halves")
    own.deploy("isolated", "halves")
    wait_until(lambda: own.index().get("halves", ("",))[0] == "UNAVAILABLE", "unavailable", timeout_s=90)
    told, controller = own.index(), serve_pid(cluster, CONTROLLER)
    os.kill(controller, signal.SIGKILL)
    wait_until(lambda: serve_pid(cluster, CONTROLLER) not in (0, controller), "a new controller", timeout_s=60)
    until_s = time.monotonic() + 2.0
    while time.monotonic() < until_s:
        assert own.index() == told
    script(cluster, DELETE, "halves")
    wait_until(lambda: own.index()["halves"] == ("READY", ""), "ready", timeout_s=60)


def test_what_somebody_has_deleted_or_replaced_is_noticed(cluster: Cluster, own: Deployment) -> None:
    own.deploy("isolated", "halves")
    wait_until(lambda: own.index().get("halves", ("",))[0] == "READY", "ready", timeout_s=90)
    controller = serve_pid(cluster, CONTROLLER)
    script(cluster, DELETE, "halves")
    wait_until(lambda: own.index()["halves"] != ("READY", ""), "gone", timeout_s=60)
    wait_until(lambda: own.index()["halves"] == ("READY", ""), "ready again", timeout_s=60)
    script(cluster, THEIRS, "halves")
    wait_until(lambda: "'halves' is not Eagleray's" in own.index()["halves"][1], "taken", timeout_s=60)
    assert serve_pid(cluster, CONTROLLER) == controller


def test_load_of_a_model_whose_name_is_taken_is_refused(cluster: Cluster, own: Deployment) -> None:
    script(cluster, THEIRS, "halves")
    own.deploy("isolated", "simple", "halves", model_control_mode="explicit", load_model=["simple"])
    wait_until(lambda: own.index().get("simple", ("",))[0] == "READY", "ready", timeout_s=90)
    with Client(own.address, timeout_s=30.0) as client:
        answer = client.request("POST", "/v2/repository/models/halves/load")
        assert answer.status == 400, answer.body
        assert "the Serve application 'halves' is not Eagleray's" in answer.json["error"]
        script(cluster, DELETE, "halves")
        assert client.request("POST", "/v2/repository/models/halves/load").status == 200


SLOW = """
import time

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(60)

    def execute(self, requests):
        return []
"""


def test_all_ends_though_a_model_loads_that_takes_long(cluster: Cluster, own: Deployment, tmp_path: Path) -> None:
    """Serve gives the controller 10 s, and waits first for its calls."""
    own.deploy("isolated", "simple", model_control_mode="explicit", load_model=["simple"])
    write(tmp_path / "isolated", {"slow/config.pbtxt": f'backend: "python" {TENSORS}', "slow/1/model.py": SLOW})
    wait_until(lambda: own.index().get("simple", ("",))[0] == "READY", "ready", timeout_s=90)
    with Client(own.address, timeout_s=60.0) as client, ThreadPoolExecutor(1) as thread:
        loading = thread.submit(client.request, "POST", "/v2/repository/models/slow/load")
        wait_until(lambda: "slow" in statuses(cluster), "it loads", timeout_s=30)
        script(cluster, DELETE, "eagleray")
        applications(cluster, set())
        answer = loading.result()
        assert answer.status == 503 and "the server is stopping" in answer.json["error"]


def ingresses(cluster: Cluster) -> tuple[str, dict[str, int]]:
    """Return the status of Eagleray's application, and how many ingresses are in each state."""
    found = cluster.applications().get("eagleray")
    if found is None or "Ingress" not in found["deployments"]:
        return "", {}
    return found["status"], Counter(each["state"] for each in found["deployments"]["Ingress"]["replicas"])


def nodes_of_ingresses(cluster: Cluster) -> dict[str, str]:
    """Return the node on which each ingress runs."""
    deployments = cluster.applications()["eagleray"]["deployments"]
    replicas = deployments["Ingress"]["replicas"] if "Ingress" in deployments else []
    return {each["replica_id"]: each["node_id"] for each in replicas}


def test_application_is_healthy_again_after_a_node_has_died(cluster: Cluster, own: Deployment, tmp_path: Path) -> None:
    """There is one ingress on each node, also of those that are deployed anew beside others.

    With a node less, one less is wanted, and no other waits for a place.
    """
    env = cluster.env | {"RAY_worker_niceness": "7"}
    node = Process(ray_head.node_command(cluster.address), tmp_path / "node", env)
    try:
        node.wait_for("Ray runtime started")
        own.deploy("isolated", "simple", exit_timeout_secs=1, ingresses_per_node=1)
        wait_until(lambda: ingresses(cluster) == ("RUNNING", {"RUNNING": 2}), "two ingresses", 120.0)
        cluster.wait_for_log("what serves here runs at niceness 7")
        before = nodes_of_ingresses(cluster)
        own.deploy("isolated", exit_timeout_secs=1, ingresses_per_node=1, http_idle_timeout_s=100)
        wait_until(
            lambda: (
                ingresses(cluster) == ("RUNNING", {"RUNNING": 2})
                and not before.keys() & nodes_of_ingresses(cluster).keys()
            ),
            "both replaced",
            120.0,
        )
        assert sorted(nodes_of_ingresses(cluster).values()) == sorted(before.values())
        assert len(set(before.values())) == 2
    finally:
        node.kill()
    wait_until(lambda: ingresses(cluster)[0] == "UNHEALTHY", "Serve's word of the dead node", 30.0)
    # Serve waits for the replica that never got a place as for one that drains.
    wait_until(lambda: ingresses(cluster) == ("RUNNING", {"RUNNING": 1}), "one ingress", 90.0)


def console_shows_both_nodes(server: Server) -> None:
    """The console has what was counted on the other node, the share of its GPU that the replica holds, and its log.

    Checks of the other node are asked for in the same way as its log.
    """
    plan = server.get("/v2/console/plan").json
    (held,) = [each for each in plan["deployments"] if each["application"] == "waits"]
    assert (held["gpu"], 0 < held["gpus"] <= 1, held["models"][0]["why"]) == (0, True, "runs on a GPU")
    nodes = {key: node for key, _, node, _ in plan["replicas"]}
    assert nodes[held["key"]] != nodes["eagleray-packed#models"]

    def counted() -> bool:
        state = server.get("/v2/console/state").json
        (row,) = [row for row in state["models"] if row["name"] == "waits"]
        alive = {node["id"] for node in state["nodes"] if node["address"]}
        return row.get("success") == 1 and set(nodes.values()) <= alive

    wait_until(counted, "the request that was answered on the other node", 30.0)
    logged = {each["node"] for each in server.get("/v2/console/models/waits/log").json["nodes"]}
    assert nodes[held["key"]] in logged
    examined = server.get("/v2/doctor").json["findings"]
    assert {each["node"] for each in examined if each["check"] == "open files"} == set(nodes.values())
    assert [each["text"] for each in examined if not each["node"]] == ["2 nodes with the same versions"]


def files_that_clients_send_go_from_both_nodes(server: Server) -> None:
    tensors = [{"name": "X", "data_type": "TYPE_INT32", "dims": [1]}]
    needs = {"node_labels": "zone=b", "num_cpus": "0.01"}
    config = {
        "backend": "python",
        **dict.fromkeys(("input", "output"), tensors),
        "parameters": {f"eagleray.{name}": {"string_value": value} for name, value in needs.items()},
    }
    code = base64.b64encode(GPU_MODEL.encode()).decode()
    answer = server.post(
        "/v2/repository/models/sent/load", {"parameters": {"config": json.dumps(config), "file:1/model.py": code}}
    )
    assert answer.status == 200, answer.body

    def folders() -> list[Path]:
        return list(Path(f"/dev/shm/eagleray-nodes-{os.getuid()}").glob("*/models/*/*/sent"))

    assert len(folders()) == 2, "the controller's, and that of the node which runs it"
    assert server.post("/v2/repository/models/sent/unload", {}).status == 200
    wait_until(lambda: not folders(), "no file left", timeout_s=40)


def test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one(cluster: Cluster, tmp_path: Path) -> None:
    """Runs last: the node stays."""
    repository = tmp_path / "repository"
    shutil.copytree(ROOT / "examples/model_repository/digits", repository / "digits")
    (repository / "waits/1").mkdir(parents=True)
    (repository / "waits/1/model.py").write_text(GPU_MODEL)
    on_labelled = 'parameters { key: "eagleray.node_labels" value { string_value: "zone=b" } }'
    (repository / "waits/config.pbtxt").write_text(f"{GPU_CONFIG} instance_group {{ kind: KIND_GPU }} {on_labelled}")
    flags = ("--ray-address", cluster.address, "--placement", "auto", "--strict-readiness", "false")
    flags += ("--model-control-mode", "explicit", "--load-model", "*")
    server = Server(repository, tmp_path / "log", *flags, env=cluster.env)
    node = None
    try:
        server.wait_ready()
        before = rows_by_model(server)
        assert (before["waits"]["state"], before["digits"]["state"]) == ("UNAVAILABLE", "READY")
        assert "no GPUs are available" in before["waits"]["reason"]
        nodes_asked_for(cluster, {"GPU": 1})
        command = ray_head.node_command(cluster.address, num_gpus=1, labels="zone=b")
        node = Process(command, tmp_path / "node", cluster.env, cwd=tmp_path)
        wait_until(lambda: rows_by_model(server)["waits"]["state"] == "READY", "the model placed", timeout_s=90)
        answer = server.infer("waits", tensor("X", "INT32", [1], [0]))
        assert answer.json["outputs"][0]["data"] == [1]
        assert server.get("/v2/models/digits/ready").status == 200
        console_shows_both_nodes(server)
        files_that_clients_send_go_from_both_nodes(server)
        node.kill()
        wait_until(
            lambda: "no node has" in rows_by_model(server)["waits"].get("reason", ""), "what the model needs", 60.0
        )
        assert rows_by_model(server)["waits"]["state"] == "UNAVAILABLE"
        server.stop()
    finally:
        server.kill()
        if node is not None:
            node.kill()


def rows_by_model(server: Server) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in server.post("/v2/repository/index").json}
