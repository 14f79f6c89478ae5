"""What Serve's controller does otherwise in a cluster of Eagleray's; a Ray that changed what it needs fails here."""

import asyncio
import inspect
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private import controller
from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.controller import ServeController
from ray.serve._private.deployment_state import DeploymentStateManager

from deployments import serve_controller
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
import json, os, tempfile, time
import ray
from ray import serve
from ray.experimental.internal_kv import _internal_kv_list
from ray.serve.context import _get_global_client
from deployments.serve_controller import STEADY_PERIOD_S
from deployments.serve_internals import application_status
from tests.serving import wait_until

def classes():
    return {*_internal_kv_list("ActorClass:", namespace="fun")}

class Starts:
    def __init__(self, gate):
        while os.path.exists(gate):
            time.sleep(0.1)

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(proxy_location="Disabled")
controller = _get_global_client()._controller

def sleeps():  # at least as long as it wants to, however slow the machine is
    return ray.get(controller.get_health_metrics.remote())["last_sleep_duration_s"]

def looks_often():
    return 0 < sleeps() < STEADY_PERIOD_S

def looks_seldom():
    return sleeps() >= STEADY_PERIOD_S

def run(name, gate=""):
    deployment = serve.deployment(Starts).options(ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1)
    serve._run(deployment.bind(gate), name=name, route_prefix=None, _blocking=False)

def wait_until_running(name):
    wait_until(lambda: application_status(name) == "RUNNING", name)

wait_until(looks_often, "often while there is nothing")
run("first")
wait_until_running("first")
wait_until(looks_seldom, "seldom once nothing changes")
with tempfile.NamedTemporaryFile() as gate:
    run("second", gate.name)
    wait_until(looks_often, "often while a deployment starts")
    changing = application_status("second")
wait_until_running("second")
wait_until(looks_seldom, "seldom again")
before = classes()
for _ in range(2):
    serve.delete("first")
    run("first")
    wait_until_running("first")
more = len(classes() - before)
serve.shutdown()
ray.shutdown()
print(json.dumps([changing, more]))
"""


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_serves_controller_looks_often_only_while_something_changes() -> None:
    """Nor does each deployment leave another class behind."""
    calm = environment(
        RAY_SERVE_LOG_TO_STDERR="0", RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH="eagleray:calm_serve_controller"
    )
    done = run(sys.executable, "-c", PACE, env=calm, timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["DEPLOYING", 0]


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


def test_looks_follow_each_other_soon_after_serve_was_told_and_take_a_quarter_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, slept = 100.0, list[float]()
    steady = SimpleNamespace(list_app_statuses=lambda: {}, get_deployment_statuses=lambda: [])
    state = SimpleNamespace(application_state_manager=steady, deployment_state_manager=steady)
    monkeypatch.setattr(serve_controller, "time", SimpleNamespace(monotonic=lambda: now_s))

    async def sleep(delay_s: float) -> None:
        slept.append(round(delay_s, 3))

    async def sleeps() -> list[float]:
        nonlocal now_s
        pace = serve_controller._Pace()
        now_s += 2
        await pace.sleep(0.1)
        pace.tell()
        for look_s in (0.001, 0.02, 1.0):
            with pace.look(state):
                now_s += look_s
            pace.tell()
            await pace.sleep(0.1)
        now_s += 1.5
        await pace.sleep(0.1)
        return slept

    monkeypatch.setattr(serve_controller.asyncio, "sleep", sleep)
    assert asyncio.run(sleeps()) == [0.1, 0.02, 0.06, 0.1, 0.1]
