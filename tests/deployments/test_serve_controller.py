"""What Serve's controller does otherwise in a cluster of Eagleray's; a Ray that changed what it needs fails here."""

import asyncio
import inspect
import json
import sys
from typing import Any

import pytest
from ray.serve._private import controller
from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.controller import ServeController
from ray.serve._private.deployment_state import DeploymentStateManager

from tests.serving import environment, run


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_serves_controller_calls_what_a_variable_names_once_its_loop_runs() -> None:
    assert inspect.iscoroutinefunction(ServeController.__init__)
    assert "call_function_from_import_path(RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH)" in inspect.getsource(
        ServeController.__init__
    )


def test_serves_controller_sleeps_between_looks_for_as_long_as_its_module_says() -> None:
    assert inspect.iscoroutinefunction(ServeController.run_control_loop_step)
    source = inspect.getsource(ServeController.run_control_loop)
    assert "self.run_control_loop_step(" in source and "asyncio.sleep(CONTROL_LOOP_INTERVAL_S)" in source
    assert isinstance(controller.CONTROL_LOOP_INTERVAL_S, float)
    assert controller.asyncio is asyncio
    assert parameters(ApplicationStateManager.list_app_statuses) == ["self", "source"]
    assert parameters(DeploymentStateManager.get_deployment_statuses) == ["self", "ids"]


def test_serves_controller_writes_down_what_it_was_told_to_change() -> None:
    for method in (ServeController.deploy_applications, ServeController.apply_config, ServeController.delete_apps):
        assert "self.application_state_manager.save_checkpoint()" in inspect.getsource(method)
    assert "self.save_checkpoint()" in inspect.getsource(DeploymentStateManager.set_target_num_replicas)
    for states in (ApplicationStateManager, DeploymentStateManager):
        assert parameters(states.save_checkpoint) == ["self"]


PACE = """
import json, time
import ray
from ray import serve
from ray.experimental.internal_kv import _internal_kv_list
from ray.serve.context import _get_global_client
from deployments.serve_controller import STEADY_AFTER_S
from deployments.serve_internals import application_status

def classes():
    return {*_internal_kv_list("ActorClass:", namespace="fun")}

class Starts:
    def __init__(self, start_s):
        time.sleep(start_s)

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(proxy_location="Disabled")
controller = _get_global_client()._controller

def looks_per_s():
    begin, before = time.monotonic(), ray.get(controller.get_health_metrics.remote())["num_control_loops"]
    time.sleep(3)
    after = ray.get(controller.get_health_metrics.remote())["num_control_loops"]
    return (after - before) / (time.monotonic() - begin)

def run(name, start_s):
    deployment = serve.deployment(Starts).options(ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1)
    serve._run(deployment.bind(start_s), name=name, route_prefix=None, _blocking=False)

def wait_until_running(name):
    while application_status(name) != "RUNNING":
        time.sleep(0.1)

told = [looks_per_s()]
run("first", 0)
wait_until_running("first")
time.sleep(STEADY_AFTER_S + 1)
told.append(looks_per_s())
run("second", 3)  # after a second or two in which its process starts
time.sleep(1)
told.append(looks_per_s())
wait_until_running("second")
time.sleep(STEADY_AFTER_S + 1)
told.append(looks_per_s())
before = classes()
for _ in range(2):
    serve.delete("first")
    run("first", 0)
    wait_until_running("first")
told.append(len(classes() - before))
serve.shutdown()
ray.shutdown()
print(json.dumps(told))
"""


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_serves_controller_looks_often_only_while_something_changes() -> None:
    """Nor does each deployment leave another class behind."""
    calm = environment(
        RAY_SERVE_LOG_TO_STDERR="0", RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH="eagleray:calm_serve_controller"
    )
    done = run(sys.executable, "-c", PACE, env=calm, timeout_s=150)
    assert done.returncode == 0, done.stderr
    empty, steady, changing, steady_again, classes = json.loads(done.stdout.splitlines()[-1])
    assert max(steady, steady_again) <= 2.1 < min(empty, changing), (steady, steady_again, empty, changing)
    assert classes == 0


TOLD = """
import asyncio
from types import SimpleNamespace
from unittest.mock import MagicMock
from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.controller import ServeController
from ray.serve._private.deployment_state import DeploymentStateManager
from ray.serve.schema import ApplicationStatus
from deployments import serve_controller

looked = asyncio.Event()

class Controller(ServeController):
    def __init__(self):
        running = {"app": SimpleNamespace(status=ApplicationStatus.RUNNING)}
        self.application_state_manager = SimpleNamespace(list_app_statuses=lambda: running)
        self.deployment_state_manager = SimpleNamespace(get_deployment_statuses=lambda: [])
        self.control_loop_duration_gauge_s = self.num_control_loops_gauge = self.sleep_duration_gauge_s = MagicMock()
        self._health_metrics_tracker = MagicMock()

    async def run_control_loop_step(self, *args):
        looked.set()

async def main():
    loop = asyncio.create_task(Controller().run_control_loop())
    for states in (ApplicationStateManager, DeploymentStateManager):
        await asyncio.sleep(1)  # it sleeps, for an hour
        looked.clear()
        states.save_checkpoint(SimpleNamespace(_shutting_down=True))
        await asyncio.wait_for(looked.wait(), 20)
    print("looked")

serve_controller.STEADY_AFTER_S, serve_controller.STEADY_PERIOD_S = 0.0, 3600.0
serve_controller.calm_serve_controller()
asyncio.run(main())
"""


def test_serves_controller_looks_at_once_when_it_is_told_to_change_something() -> None:
    done = run(sys.executable, "-c", TOLD, env=environment(), timeout_s=60)
    assert done.stdout.splitlines()[-1:] == ["looked"], done.stderr
