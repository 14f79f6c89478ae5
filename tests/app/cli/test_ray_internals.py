"""What Eagleray needs of Ray beyond its public API to start and end it; a Ray that changed any of it fails here."""

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import ray_constants, services, worker
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.ray_constants import PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT

from app.cli.ray_internals import AGENT_LAUNCHER, AGENT_PORTS, bound_agents
from tests.serving import environment, run


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_processes_that_a_ray_that_is_started_here_need_not_have_can_be_left_out() -> None:
    assert parameters(Node.start_log_monitor) == ["self"]
    assert parameters(Node.start_api_server) == ["self", "include_dashboard", "raise_on_failure"]
    source = inspect.getsource(Node.start_head_processes) + inspect.getsource(Node.start_ray_processes)
    assert "self.start_api_server(" in source and "self.start_log_monitor()" in source


def test_the_dashboard_can_be_started_by_what_stands_for_a_node() -> None:
    source = inspect.getsource(Node.start_api_server)
    assert source.count(" = ") == 3  # the names of two files, and:
    assert "self._webui_url, process_info = " in source
    assert "self.all_processes[ray_constants.PROCESS_TYPE_DASHBOARD] = " in source


def test_which_processes_have_ended_of_a_cluster_that_was_started_here_can_be_asked() -> None:
    assert parameters(Node.dead_processes) == ["self"]
    for kind in ("PROCESS_TYPE_GCS_SERVER", "PROCESS_TYPE_RAYLET"):
        assert f"ray_constants.{kind}" in inspect.getsource(Node)


def test_the_autoscaler_of_a_cluster_that_was_started_here_can_be_ended() -> None:
    assert parameters(Node.kill_monitor) == ["self", "check_alive"]
    assert "self.head = head" in inspect.getsource(Node.__init__)
    assert hasattr(worker, "_global_node")


def test_the_script_that_starts_workers_can_be_another() -> None:
    assert "ray_constants.SETUP_WORKER_FILENAME" in inspect.getsource(Node.__init__)
    assert "self._ray_params.setup_worker_path" in inspect.getsource(Node.start_raylet)
    folder = Path(ray.__file__).parent / "_private" / "workers"
    assert (folder / "default_worker.py").is_file() and (folder / ray_constants.SETUP_WORKER_FILENAME).is_file()
    assert ray_constants.SETUP_WORKER_FILENAME == "setup_worker.py"


def test_the_command_lines_of_agents_begin_with_python_and_its_flag(tmp_path: Path) -> None:
    for component in (PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT):
        begin = services._build_python_executable_command_memory_profileable
        with bound_agents():
            begin_bound = services._build_python_executable_command_memory_profileable(component, str(tmp_path))
        assert begin(component, str(tmp_path)) == [sys.executable, "-u"]
        assert begin_bound == [sys.executable, "-u", str(AGENT_LAUNCHER)]
        assert begin is services._build_python_executable_command_memory_profileable
    assert inspect.getsource(services.start_raylet).count("_build_python_executable_command_memory_profileable(") == 2


def test_ports_of_agents_are_read_from_parameters_and_files() -> None:
    for name in AGENT_PORTS:
        assert f"{name}=self._ray_params.{name}" in inspect.getsource(Node.start_raylet)
        assert name in parameters(RayParams.__init__)


LATE_AGENTS = """
import os, sys, time
raylet = os.getppid()
while not os.path.exists(sys.argv[0] + ".go"):
    if os.getppid() != raylet:
        sys.exit()
    time.sleep(0.05)
os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])
"""

STARTED = """
import pathlib, socket, sys, time
import ray
from app.cli import ray_internals

ray_internals.AGENT_LAUNCHER = launcher = pathlib.Path(sys.argv[1])
with ray_internals.sigterm_kept(), ray_internals.as_served(dashboard=False):
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
print(ray.get(ray.remote(lambda: "answered").remote()))
launcher.with_name(launcher.name + ".go").touch()
node, = ray.nodes()
listening = []
for name in ("MetricsAgentPort", "MetricsExportPort", "DashboardAgentListenPort", "RuntimeEnvAgentPort"):
    while name not in listening:
        try:
            socket.create_connection((node["NodeManagerAddress"], node[name])).close()
            listening.append(name)
        except ConnectionRefusedError:
            time.sleep(0.1)
print(len(listening))
ray.shutdown()
"""


@pytest.mark.ray
@pytest.mark.timeout(90)
def test_a_node_starts_before_its_agents_which_listen_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LATE_AGENTS)
    done = run(sys.executable, "-c", STARTED, str(tmp_path / "launcher.py"), env=environment(), timeout_s=80)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "answered\n4\n"


TERMINATED = """
import os, signal, sys, threading, time
import ray
from ray._private.node import Node
from ray._private.parameter import RayParams
from app.cli.ray_internals import sigterm_kept

got = []

def handle(number, frame):
    signal.alarm(0)
    got.append(number)

signal.signal(signal.SIGTERM, handle)
started = threading.Event()

def terminate():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as another process would send it
    while not started.wait(0.06):  # two while Ray's handler is at work end the process, which is Ray's
        os.kill(os.getpid(), signal.SIGTERM)

terminating = threading.Thread(target=terminate)
terminating.start()
with sigterm_kept():
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    started.set()
    terminating.join()
time.sleep(2)  # in which Ray's handler ends that is at work in another thread
sent = [len(got)]

def terminated(step):
    def stepped(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        sent.append(len(got))
        return step(*args, **options)

    return stepped

print("started", file=sys.stderr, flush=True)
Node.kill_all_processes = terminated(Node.kill_all_processes)
with sigterm_kept():
    terminated(ray.shutdown)()
os.kill(os.getpid(), signal.SIGTERM)
sent.append(len(got))
print(sent[0] > 10, [after - before for before, after in zip(sent, sent[1:])], signal.getitimer(signal.ITIMER_REAL))
"""


@pytest.mark.ray
@pytest.mark.timeout(90)
def test_sigterm_while_ray_starts_and_ends_is_ours() -> None:
    done = run(sys.executable, "-c", TERMINATED, env=environment(), timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True [1, 1, 1] (0.0, 0.0)\n"
    assert "SIGTERM" not in done.stderr.partition("started\n")[2]
