"""What Eagleray needs of Ray Serve beyond its public API; a Ray that changed any of it fails here, and says what."""

import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray._private.resource_and_label_spec import RESOURCE_CONSTRAINT_PREFIX, ResourceAndLabelSpec
from ray._private.thirdparty import pynvml
from ray._raylet import RAY_NODE_ACCELERATOR_TYPE_KEY
from ray.serve._private import default_impl, replica, router
from ray.serve._private.application_state import StatusOverview
from ray.serve._private.client import ServeControllerClient
from ray.serve._private.common import DeploymentID, DeploymentStatusInfo, ReplicaID, RunningReplicaInfo
from ray.serve._private.controller import ServeController
from ray.serve._private.deployment_scheduler import AvailableNodeResources
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.replica_wrapper import RunningReplica as ServesReplica
from ray.serve._private.request_router.request_router import RequestRouter
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentBroadcastResponse, DeploymentHandle
from ray.serve.schema import ControllerHealthMetrics, DeploymentDetails, DeploymentSchema, ReplicaDetails

from deployments.control import replica_directory
from deployments.replica.device_memory import only_gpu
from deployments.serve_internals import (
    LANE_ROUTER,
    GpuReader,
    local_gpus,
    pin_version,
    serve_logs_folder,
    share_of_node,
)
from eagleray.lane_router import LaneRouter
from tests.e2e.ray_head import DEAD_SOON
from tests.serving import environment, run


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_ray_is_of_the_version_that_was_tried() -> None:
    assert ray.__version__.startswith("2.60."), "try serve_internals.py on this Ray, then change this line"


def test_the_actor_of_a_replica_is_named_by_its_application_and_deployment() -> None:
    """As `living_replicas` reads it."""
    assert "eagleray#Ingress#" in ReplicaID("1a2b", DeploymentID("Ingress", "eagleray")).to_full_id_str()


def test_router_hears_of_replicas_through_update_replicas() -> None:
    assert issubclass(PowerOfTwoChoicesRequestRouter, RequestRouter)
    assert parameters(RequestRouter.update_replicas) == ["self", "replicas"]
    assert "_deployment_id" in inspect.getsource(RequestRouter.__init__)


@pytest.mark.parametrize("name", ["replica_id", "node_id", "replica_metadata"])
def test_replica_has(name: str) -> None:
    assert isinstance(inspect.getattr_static(ServesReplica, name), property)


def test_replicas_publish_metadata_to_routers() -> None:
    assert "replica_metadata" in RunningReplicaInfo.__dataclass_fields__
    source = inspect.getsource(replica)
    assert "record_replica_metadata" in source


def test_each_node_has_one_of_a_resource_whatever_its_name() -> None:
    ((name, share),) = share_of_node("anything", 4).items()
    assert (AvailableNodeResources().get(name), share) == (1, 0.25)
    assert "max_surge_percent" in inspect.signature(serve.deployment).parameters


def test_handle_to_what_does_not_exist_yet_can_be_had_and_initialised() -> None:
    assert {"deployment_name", "app_name", "_check_exists"} <= set(parameters(serve.get_deployment_handle))
    assert isinstance(inspect.getattr_static(DeploymentHandle, "is_initialized"), property)
    assert parameters(DeploymentHandle._init) == ["self", "kwargs"]
    assert parameters(DeploymentHandle.shutdown) == ["self"]
    assert "cache_key = (deployment_name, app_name, check_exists)" in inspect.getsource(
        ServeControllerClient.get_handle
    )


def test_calls_of_a_handle_can_be_plain() -> None:
    assert "self._asyncio_router = " in inspect.getsource(router.SingletonThreadRouter.__init__)
    assert "self._enable_strict_max_ongoing_requests" in inspect.getsource(
        router.AsyncioRouter._route_and_send_request_once
    )


def test_each_answer_to_a_broadcast_can_be_had() -> None:
    source = inspect.getsource(DeploymentBroadcastResponse.results_async)
    assert "await self._fetch_replica_results_async()" in source and "rr.get_async() for rr in" in source


def test_replicas_are_scaled_from_outside() -> None:
    assert parameters(ServeController.update_deployment_replicas) == ["self", "deployment_id", "target_num_replicas"]
    assert parameters(DeploymentID)[:2] == ["name", "app_name"]
    assert "target_num_replicas" in DeploymentDetails.model_fields
    assert "external_scaler_enabled" in parameters(serve.RunTarget)


def test_client_tells_statuses_and_details_and_ends_applications() -> None:
    assert parameters(ServeControllerClient.list_serve_statuses) == ["self"]
    assert {"name", "app_status", "deployment_statuses"} <= StatusOverview.__dataclass_fields__.keys()
    assert {"name", "status", "message"} <= DeploymentStatusInfo.__dataclass_fields__.keys()
    assert parameters(ServeControllerClient.get_serve_status) == ["self", "name"]
    assert parameters(ServeControllerClient.get_serve_details) == ["self"]
    assert parameters(ServeControllerClient.delete_apps) == ["self", "names", "blocking"]
    assert "user_config" in DeploymentSchema.model_fields
    assert "replicas" in DeploymentDetails.model_fields and "state" in ReplicaDetails.model_fields


def test_controller_tells_its_time_and_goes_on_when_it_is_killed() -> None:
    assert parameters(ServeController.get_health_metrics) == ["self"]
    assert "timestamp" in ControllerHealthMetrics.model_fields
    source = inspect.getsource(default_impl)
    assert "name=SERVE_CONTROLLER_NAME" in source and "max_restarts=-1" in source


def test_a_ray_that_starts_finds_its_gpus_so() -> None:
    assert parameters(ResourceAndLabelSpec._get_current_node_accelerator) == ["num_gpus", "resources"]
    assert RAY_NODE_ACCELERATOR_TYPE_KEY == "ray.io/accelerator-type"
    assert RESOURCE_CONSTRAINT_PREFIX == "accelerator_type:"
    found, kind = local_gpus(None)
    assert bool(found) == bool(kind) and local_gpus(0) == (0, "")


def test_gpus_tell_their_state_where_there_are_some_and_nothing_where_there_are_none() -> None:
    states = GpuReader().read()
    assert len(states) == gpu_count()
    for state in states.values():
        assert state["total_bytes"] >= state["used_bytes"] > 0 and 0 <= state["utilization_ppm"] <= 1_000_000
    for name in ("UtilizationRates", "MemoryInfo", "PowerUsage", "PowerManagementLimit", "TotalEnergyConsumption"):
        assert callable(getattr(pynvml, f"nvmlDeviceGet{name}"))


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (["1"], "GPU-b2"),
        (["GPU-b2"], "GPU-b2"),
        (["GPU-b"], "GPU-b2"),
        (["2"], ""),
        ([], ""),
        (["0", "1"], ""),
    ],
)
def test_a_process_has_the_gpu_that_ray_names(ids: list[str], found: str) -> None:
    assert only_gpu(ids, ["GPU-a1", "GPU-b2"]) == found


def gpu_count() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def test_folder_of_the_logs_can_be_had_without_ray() -> None:
    assert serve_logs_folder().endswith("/serve")


def test_version_of_a_deployment_can_be_pinned() -> None:
    assert {"version", "_internal"} <= set(parameters(serve.Deployment.options))

    @serve.deployment
    class Anything:
        pass

    assert pin_version(Anything, "7").version == "7"


def test_router_class_is_found_by_its_path() -> None:
    config = RequestRouterConfig(request_router_class=LANE_ROUTER)
    assert config.get_request_router_class() is LaneRouter


def test_router_publishes_what_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Any, ...]] = []
    replica_directory.listen("app#model", heard.append)
    monkeypatch.setattr(PowerOfTwoChoicesRequestRouter, "update_replicas", lambda self, replicas: None)
    router = object.__new__(LaneRouter)
    router._deployment_id = SimpleNamespace(app_name="app", name="model")
    running = SimpleNamespace(
        replica_id=SimpleNamespace(unique_id="r1"), node_id="n1", replica_metadata={"lane": "/tmp/lane"}
    )
    router.update_replicas([running])
    router.update_replicas([running])
    router.update_replicas([])
    replica_directory.forget("app#model")
    assert heard == [(replica_directory.RunningReplica("r1", "n1", {"lane": "/tmp/lane"}),), ()]


CARDS = """
import json, time
import ray
from deployments.control.gpu_cards import card_resources, release_cards
from deployments.serve_internals import gpu_memory_bytes
from repository_loader.node_needs import NodeNeeds

ray.init(address="local", num_cpus=2, num_gpus=3, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class Holder:
    def told(self):
        return [ray.get_gpu_ids(), ray.get_runtime_context().get_assigned_resources()["GPU"], gpu_memory_bytes()]

holders = [Holder.options(resources=card_resources(card, 0.4, NodeNeeds())).remote() for card in (1, 0, 1, 0)]
told = ray.get([holder.told.remote() for holder in holders], timeout=60)
free_before = ray.available_resources()["GPU"]
in_use = release_cards(timeout_s=0)
needed = release_cards(timeout_s=0, needed={0, 1})
for holder in holders:
    ray.kill(holder)
given_back = release_cards()
deadline = time.monotonic() + 20
while ray.available_resources().get("GPU") != 3 and time.monotonic() < deadline:
    time.sleep(0.2)
free_after = ray.available_resources().get("GPU")
ray.shutdown()
print(json.dumps(dict(told=told, in_use=in_use, needed=needed, given_back=given_back, free=[free_before, free_after])))
"""


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_shares_of_a_card_are_on_one_gpu_and_other_cards_are_other_gpus() -> None:
    done = run(sys.executable, "-c", CARDS, env=environment(), timeout_s=150)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    ids, shares, memory = zip(*document["told"], strict=True)
    assert ids[0] == ids[2] and ids[1] == ids[3] and ids[0] != ids[1]
    assert set(shares) == {0.4}
    assert all(isinstance(each, int) and each >= 0 for each in memory)
    assert [document[each] for each in ("in_use", "needed", "given_back")] == [False, True, True]
    assert document["free"] == [1, 3]


LIVE = """
import json, queue, sys, time
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from deployments.serve_internals import (
    LANE_ROUTER, OWNER_KEY, ClusterTable, application_owners, application_states, application_status, delete_applications,
    pin_version, replica_counts, waits_for_ends_s, watch_replicas,
)

class Publishes:
    def record_replica_metadata(self):
        return {"lane": "here"}

    def reconfigure(self, user_config):
        self.config = user_config

    def __call__(self):
        import os
        return [os.getpid(), self.config]

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(proxy_location="Disabled")
lists = queue.Queue()
end = watch_replicas("app", "Publishes", lists.put)
deployment = serve.deployment(Publishes).options(
    user_config={"value": 1, OWNER_KEY: "somebody"},
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_wait_loop_s=0.1,
    request_router_config=RequestRouterConfig(request_router_class=LANE_ROUTER),
)
first = serve.run(pin_version(deployment, "1").bind(), name="app", route_prefix=None).remote().result()
replicas = ()
while not replicas:
    replicas = lists.get(timeout=30)
changed = pin_version(deployment.options(user_config={"value": 2, OWNER_KEY: "somebody"}), "1")
second = serve.run(changed.bind(), name="app", route_prefix=None).remote().result()
waits = [waits_for_ends_s("app", "Publishes"), waits_for_ends_s("app", "Another"), waits_for_ends_s("another", "Publishes")]
slower = pin_version(changed.options(graceful_shutdown_timeout_s=600.0), "1")
serve.run_many(
    [serve.RunTarget(slower.bind(), name="app", route_prefix=None)], wait_for_ingress_deployment_creation=False
)
while waits[-1] != 600.0:
    time.sleep(0.05)
    waits.append(waits_for_ends_s("app", "Publishes"))
third = serve.get_app_handle("app").remote().result()
theirs = serve.deployment(Publishes).options(
    name="Theirs", ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1
)
serve.run(theirs.bind(), name="theirs", route_prefix=None)
end()
told = {"owners": application_owners(), "states": application_states(), "status": application_status("app")}
told["replicas"] = replica_counts()["app", "Publishes"]
delete_applications(["app"])
given_up = time.monotonic() + 30
while (deleting := application_status("app")) == "RUNNING" and time.monotonic() < given_up:
    time.sleep(0.01)
told["deleting"] = deleting
table, large = ClusterTable(), bytes(range(256)) * 8192
table.put("key", b"first")
table.put("key", large)
told["kept"] = [table.get("key") == large, len(table.get("another"))]
told["kept"].append([table.keys("ke"), table.keys("nothing")])
told["came_first"] = [table.put_first("name", value).decode() for value in (b"one", b"other")]
table.forget("key")
told["kept"].append(len(table.get("key")))
serve.shutdown()
ray.shutdown()
told |= {"first": first, "second": second, "third": third, "waits": waits, "metadata": [dict(each.metadata) for each in replicas]}
print(json.dumps(told))
"""


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_on_a_live_serve() -> None:
    """Replicas are heard of, a pinned deployment changes in place, owners and states are told, applications end."""
    done = run(sys.executable, "-c", LIVE, env=environment(RAY_SERVE_LOG_TO_STDERR="0"), timeout_s=150)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["metadata"] == [{"lane": "here"}]
    (first_pid, first), (second_pid, second) = told["first"], told["second"]
    assert (first["value"], second["value"]) == (1, 2)
    assert first_pid == second_pid, "the replica was restarted for a new user_config"
    assert told["third"] == told["second"], "the replica was restarted as Serve shall wait for its end"
    assert told["waits"][:3] == [20.0, None, None]
    assert told["owners"] == {"app": "somebody", "theirs": ""}
    assert told["states"]["app"] == {"Publishes": ["HEALTHY", ""]}
    assert told["status"] == "RUNNING"
    assert told["replicas"] == 1
    assert told["kept"] == [True, 0, [["key"], []], 0]
    assert told["came_first"] == ["one", "one"]
    assert told["deleting"] in ("DELETING", "NOT_STARTED")


DEAD_NODE = """
import json
import ray
from ray.cluster_utils import Cluster
from deployments.control.gpu_cards import _held_cards, card_resources, release_cards
from eagleray.scaling import draining_nodes, nodes_in_use
from tests.serving import wait_until

cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, include_dashboard=False))
node = cluster.add_node(num_cpus=0, num_gpus=1)
ray.init(address=cluster.address, log_to_driver=False)
head, _ = (each["NodeID"] for each in sorted(ray.nodes(), key=lambda each: each["NodeID"] == node.node_id))
wait_until(lambda: nodes_in_use() == {head}, "nothing in use but the head")
card_resources(0, 0.5)
wait_until(lambda: [state for _, state in _held_cards()] == ["CREATED"], "a card")
wait_until(lambda: nodes_in_use() == {head, node.node_id}, "the card's node in use")
assert draining_nodes() == set()
cluster.remove_node(node, allow_graceful=False)
wait_until(lambda: [state for _, state in _held_cards()] == ["RESCHEDULING"], "its node to be dead", 60)
given_back = release_cards()
alive = sum(node["Alive"] for node in ray.nodes())
ray.shutdown()
cluster.shutdown()
print(json.dumps([given_back, alive]))
"""


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_card_of_a_dead_node_is_given_back() -> None:
    done = run(sys.executable, "-c", DEAD_NODE, env=environment(**DEAD_SOON), timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, 1]
