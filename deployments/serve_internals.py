"""What touches Ray Serve where it has no public API, beside `eagleray/lane_router.py`.

`tests/deployments/test_serve_internals.py` fails loudly on a Ray that changed any of it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import ray
from ray import PlacementGroupID, serve
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.thirdparty import pynvml
from ray._raylet import IMPLICIT_RESOURCE_PREFIX  # type: ignore[attr-defined]
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put
from ray.serve._private import constants
from ray.serve._private.common import DeploymentID, DeploymentStatus, ReplicaState
from ray.serve._private.logging_utils import get_serve_logs_dir
from ray.serve._private.long_poll import LongPollNamespace
from ray.serve._private.router import AsyncioRouter, SharedRouterLongPollClient, SingletonThreadRouter
from ray.serve._private.utils import is_grpc_enabled
from ray.serve.config import ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentBroadcastResponse, DeploymentHandle
from ray.serve.schema import ApplicationStatus
from ray.util.placement_group import PlacementGroup

from deployments.control import replica_directory
from deployments.replica.device_memory import only_gpu

LANE_ROUTER: Final = "eagleray.lane_router:LaneRouter"
ON_HEAD: Final = {HEAD_NODE_RESOURCE_NAME: 0.001}
"""What an actor asks Ray for that is to run on the head, as Serve's own controller does."""
OWNER_KEY: Final = "eagleray_owner"
"""Where the `user_config` of a deployment of Eagleray's names the Serve application on whose behalf it runs."""

HEALTHY: Final = "HEALTHY"
"""State of a deployment that has the replicas which it should have."""
DEPLOY_FAILED: Final = "DEPLOY_FAILED"
"""That of one for which Serve starts no more replicas."""
UNHEALTHY: Final = "UNHEALTHY"
"""That of one that had them, and lacks some; Serve starts others."""
FAILED: Final = frozenset({DEPLOY_FAILED, UNHEALTHY})
"""States of deployments whose replicas do not start, or no longer serve."""
UPDATING: Final = "UPDATING"
"""That of a deployment whose replicas are being changed."""
DEPLOYING: Final = "DEPLOYING"
"""That of an application that is deployed, or deployed anew, and is not all there yet."""
DELETING: Final = "DELETING"
"""That of an application that somebody has deleted, and that is yet to go."""
ENDING: Final = frozenset({DELETING, "NOT_STARTED"})
"""Those of applications that somebody has deleted, gone or not."""
_NOT_THERE: Final = (ReplicaState.STARTING, ReplicaState.STOPPING)

_NAMESPACE: Final = b"eagleray"
_UNSCHEDULED: Final = "s to be scheduled."
_START_FAILED: Final = "failed to start"


class DeploymentState(NamedTuple):
    """What Serve says of a deployment: DeploymentStatus, and its message."""

    status: str
    message: str

    @property
    def lacks_room(self) -> bool:
        """Whether replicas have found no node with what they need for a while; Serve says so after 30 s."""
        return _UNSCHEDULED in self.message

    @property
    def failed_to_start(self) -> bool:
        """Whether a replica has failed to start; Serve says so until something else is to be said."""
        return _START_FAILED in self.message


def _key(app_name: str, deployment_name: str) -> str:
    return f"{app_name}#{deployment_name}"


def watch_replicas(app_name: str, deployment_name: str, listener: replica_directory.Listener) -> Callable[[], None]:
    """Call the listener, on a thread of Serve's, with every change of a deployment's running replicas.

    Returns a function that ends the watch. The router that hears of the changes exists once its handle is
    initialised; the handle is kept for as long as the watch.
    """
    key = _key(app_name, deployment_name)
    replica_directory.listen(key, listener)
    handle: DeploymentHandle = serve.get_deployment_handle(deployment_name, app_name, _check_exists=False)
    if not handle.is_initialized:
        handle._init()

    def end() -> None:
        replica_directory.forget(key)
        let_go_of(app_name, deployment_name, handle)

    return end


def let_go_of(app_name: str, deployment_name: str, *watching: DeploymentHandle) -> None:
    """Have this process ask Serve no more about a deployment for the sake of `handle_of`, or of `watching`; blocks.

    Serve never ends that by itself: at each of its polls a process asks for all that it ever had a handle to, which
    takes Serve's controller half a second for 1,000 deployments, however long these have been gone.
    """
    cached = _get_global_client().handle_cache.pop((deployment_name, app_name, False), None)
    routers = []
    for handle in {*watching, cached} - {None}:
        if handle.is_initialized:
            handle.shutdown()
            routers.append(handle._router._asyncio_router)
    if (loop := SingletonThreadRouter._asyncio_loop) is not None:
        loop.call_soon_threadsafe(_stop_asking, DeploymentID(deployment_name, app_name), routers)


def _stop_asking(deployment: DeploymentID, routers: Sequence[AsyncioRouter]) -> None:
    """Let go of routers, and of their deployment where no others want it; on the loop of the routers."""
    shared = SharedRouterLongPollClient.get_or_create(
        _get_global_client()._controller, SingletonThreadRouter._asyncio_loop
    )
    for router in routers:
        router.long_poll_client.stop()
        shared.routers[deployment].discard(router)
    if not shared.routers[deployment]:
        del shared.routers[deployment]
        poll = shared.long_poll_client
        if not isinstance(poll.key_listeners, _Listeners):
            poll.key_listeners = _Listeners(poll.key_listeners, poll.snapshot_ids)
        for namespace in (LongPollNamespace.DEPLOYMENT_TARGETS, LongPollNamespace.DEPLOYMENT_CONFIG):
            poll.key_listeners.pop((namespace, deployment), None)
            poll.snapshot_ids.pop((namespace, deployment), None)
        replica_directory.let_go(_key(deployment.app_name, deployment.name))


class _Listeners(dict[Any, Callable[[Any], None]]):
    """Whom Serve's poll tells what has changed, by key: nobody of what was let go of while a poll was under way."""

    def __init__(self, listeners: dict[Any, Callable[[Any], None]], asked: dict[Any, int]) -> None:
        super().__init__(listeners)
        self._asked = asked

    def __missing__(self, key: Any) -> Callable[[Any], None]:
        return lambda news: self._forget(key)

    def _forget(self, key: Any) -> None:
        """Let go of what the end of the poll has noted once more."""
        if key not in self:
            self._asked.pop(key, None)


def pin_version(deployment: serve.Deployment, version: str) -> serve.Deployment:
    """Give a deployment a version, so that deploying it again restarts its replicas only when the version changes."""
    return deployment.options(version=version, _internal=True)


class ClusterTable:
    """Values by key in Ray's own tables, which outlive every process, and the head too where these are in Redis.

    Every method blocks; while there is no head, until it is back.
    """

    def get(self, key: str) -> bytes:
        """Return a value, b"" when there is none."""
        return _internal_kv_get(key, namespace=_NAMESPACE) or b""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value in place of the last."""
        _internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)

    def put_first(self, key: str, value: bytes) -> bytes:
        """Keep a value where there is none, and return the one that is kept."""
        _internal_kv_put(key, value, overwrite=False, namespace=_NAMESPACE)
        return self.get(key)

    def forget(self, key: str) -> None:
        """Keep it no longer."""
        _internal_kv_del(key, namespace=_NAMESPACE)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin so."""
        return [key.decode() for key in _internal_kv_list(prefix, namespace=_NAMESPACE)]


def handle_of(deployment_name: str, app_name: str) -> DeploymentHandle:
    """Return a handle to a deployment that may not exist yet; its first call waits until it does."""
    return serve.get_deployment_handle(deployment_name, app_name, _check_exists=False)


def with_plain_calls(handle: DeploymentHandle) -> DeploymentHandle:
    """Have the calls of a handle, and of those that are made of it, be plain calls of Ray's; returns the handle.

    Serve's own have two answers each, the first of which says that the replica takes the call. Ray stops the replica's
    event loop, and all calls of others, until the caller has acknowledged both: for as long as that process stands
    still, or its node is cut off. A plain call fails when its replica dies, and is for its caller to repeat.
    """
    if not handle.is_initialized:
        handle._init()
    handle._router._asyncio_router._enable_strict_max_ongoing_requests = False
    return handle


async def answers_by(asked: DeploymentBroadcastResponse, until_s: float) -> list[Any]:
    """Return what replicas return or raise, a TimeoutError for each that has not answered by then on the loop's clock.

    Serve's own `results_async` then has no answer of the others either.

    Raises:
        TimeoutError: Serve has not said by then which replicas there are.
    """
    async with asyncio.timeout_at(until_s):
        results = await asked._fetch_replica_results_async()

    async def answer(result: Any) -> Any:
        async with asyncio.timeout_at(until_s):
            return await result.get_async()

    return await asyncio.gather(*map(answer, results), return_exceptions=True)


def application_states() -> dict[str, dict[str, DeploymentState]]:
    """Return the states of all deployments by application and name; blocks.

    `serve.status()` says the same, and has Serve's controller write out every `user_config` and target group for it.
    """
    return {
        overview.name: {
            each.name: DeploymentState(str(each.status.value), each.message) for each in overview.deployment_statuses
        }
        for overview in _get_global_client().list_serve_statuses()
    }


def application_status(app_name: str) -> str:
    """Return the ApplicationStatus of one application, NOT_STARTED when there is none; blocks."""
    return str(_get_global_client().get_serve_status(app_name).app_status.status.value)


def proxy_addresses() -> list[tuple[str, str, int]]:
    """Return what Serve's own proxies listen on, each with the options that say so; blocks.

    Nothing where they are disabled, or Serve has not started.
    """
    client = _get_global_client(raise_if_no_controller_running=False) if ray.is_initialized() else None
    if client is None or client.get_serve_details()["proxy_location"] in (None, ProxyLocation.Disabled):
        return []
    http, grpc = client.http_config, ray.get(client._controller.get_grpc_config.remote(), timeout=10)
    found = [("http_options", http.host, http.port)]
    return [*found, ("grpc_options", "0.0.0.0", grpc.port)] if is_grpc_enabled(grpc) else found


def refuses_routers() -> bool:
    """Whether Serve takes no request router for what stands first in an application, as each deployment of ours may."""
    return bool(constants.RAY_SERVE_ENABLE_HA_PROXY)


def replica_targets() -> dict[tuple[str, str], int]:
    """Return how many replicas Serve keeps of each deployment, by application and name; blocks."""
    return {place: int(deployment["target_num_replicas"]) for place, deployment in _deployments().items()}


def replica_counts() -> dict[tuple[str, str], int]:
    """Return how many replicas each deployment has, of those that have started and are not about to end; blocks."""
    return {
        place: sum(replica["state"] not in _NOT_THERE for replica in deployment["replicas"])
        for place, deployment in _deployments().items()
    }


def _deployments() -> dict[tuple[str, str], Any]:
    applications = _get_global_client().get_serve_details()["applications"]
    return {
        (app, name): deployment
        for app, application in applications.items()
        for name, deployment in application["deployments"].items()
    }


def waits_for_ends_s(app_name: str, deployment_name: str) -> float | None:
    """Return how many seconds Serve waits for a replica of a deployment that it ends, and then kills it; blocks.

    None as long as not all replicas have what was deployed last, or there is no such deployment.
    """
    deployment = _deployments().get((app_name, deployment_name))
    if deployment is None or deployment["status"] == DeploymentStatus.UPDATING:
        return None
    return float(deployment["deployment_config"]["graceful_shutdown_timeout_s"])


def set_replica_target(app_name: str, deployment_name: str, count: int) -> None:
    """Have Serve keep so many replicas of a deployment, whose application is scaled from outside; blocks.

    Raises:
        Exception: of Serve's: there is no such deployment, or it is being deleted.
    """
    controller = _get_global_client()._controller
    ray.get(controller.update_deployment_replicas.remote(DeploymentID(deployment_name, app_name), count), timeout=10)


def serve_controller_time_s() -> float:
    """Return the wall clock of Serve's controller, in seconds since the epoch; blocks."""
    return float(ray.get(_get_global_client()._controller.get_health_metrics.remote(), timeout=10)["timestamp"])


def restart_serve_controller() -> None:
    """Have Ray start Serve's controller anew; it goes on from its checkpoint."""
    ray.kill(_get_global_client()._controller, no_restart=False)


def application_owners() -> dict[str, str | None]:
    """Return, for every application, on whose behalf Eagleray deployed it: "" for one of somebody else's; blocks.

    None is for one that says nothing yet, as its deployments are still to come. One that is being deleted is left out:
    its name may be taken again, and it loses its deployments before it goes.
    """
    applications = _get_global_client().get_serve_details()["applications"]
    return {
        name: _owner(application["deployments"].values())
        for name, application in applications.items()
        if application["status"] != ApplicationStatus.DELETING
    }


def _owner(deployments: Sequence[dict[str, Any]]) -> str | None:
    """Return the owner that all deployments of an application name."""
    if not deployments:
        return None
    configs = [deployment["deployment_config"].get("user_config") for deployment in deployments]
    owners = {str(config.get(OWNER_KEY, "")) if isinstance(config, dict) else "" for config in configs}
    return owners.pop() if len(owners) == 1 else ""


def delete_applications(names: Sequence[str]) -> None:
    """Have Serve end applications; returns before they have gone."""
    if names:
        _get_global_client().delete_apps(list(names), blocking=False)


def local_gpus(count: int | None) -> tuple[int, str]:
    """Return how many GPUs a Ray would have that is started here, `count` where it is told, and Ray's name for them.

    That is as many as there are, of those that this process may use. Blocks.
    """
    manager, found = ResourceAndLabelSpec._get_current_node_accelerator(count, {})
    if manager is None or manager.get_resource_name() != "GPU":
        return 0, ""
    return int(found), manager.get_current_node_accelerator_type() or ""


def gpu_memory_bytes() -> int:
    """Return the memory of this node's smallest GPU, 0 when NVML is not there to ask."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=0)
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()


class GpuReader:
    """Asks NVML for the state of this node's GPUs; without NVML there are none."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            self._handles = {
                pynvml.nvmlDeviceGetUUID(handle): handle
                for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            }
        except pynvml.NVMLError:
            self._handles = {}

    def uuid(self, ids: Sequence[str]) -> str:
        """Return the UUID of the one GPU that Ray has given a process, by number or UUID; "" if there is no such."""
        return only_gpu(ids, list(self._handles))

    def read(self) -> dict[str, dict[str, int]]:
        """Return, by UUID and in their order, what each GPU tells of `GpuState`; blocks for some milliseconds."""
        return {uuid: self._state(handle) for uuid, handle in self._handles.items()}

    @staticmethod
    def _state(handle: Any) -> dict[str, int]:
        questions: dict[str, Callable[[], Any]] = {
            "utilization_ppm": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu * 10_000,
            "total_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
            "used_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
            "power_mw": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
            "power_limit_mw": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle),
            "energy_mj": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        }
        state = {}
        for name, ask in questions.items():
            with contextlib.suppress(pynvml.NVMLError):  # older GPUs do not tell all of it
                state[name] = int(ask())
        return state


def serve_logs_folder() -> str:
    """Return where the Serve processes of this node log; in a process of a Ray cluster."""
    return str(get_serve_logs_dir())


def share_of_gpu(group: PlacementGroup, share: float) -> dict[str, float]:
    """Return the resources by which an actor takes a share of the GPU in a placement group of one bundle.

    They are those that Ray itself writes for an actor scheduled there, which Serve has no option for.
    """
    return {f"GPU_group_{group.id.hex()}": share, f"GPU_group_0_{group.id.hex()}": share}


def share_of_node(name: str, count: int) -> dict[str, float]:
    """Return the resource of which `count` actors that ask for it fit on each node, and no more.

    Every node has 1 of it, whatever the name. So does Serve place `max_replicas_per_node`, but by the name of the
    deployment: those of another version find no room beside the ones that they are to replace.
    """
    return {f"{IMPLICIT_RESOURCE_PREFIX}{name}": 1.0 / count}


def placement_group_of(group_id: str) -> PlacementGroup:
    """Return a placement group by its id, as `placement_group_table` writes it."""
    return PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))
