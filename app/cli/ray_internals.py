"""What touches Ray where Eagleray starts and ends it, and there is no public API.

`tests/app/cli/test_ray_internals.py` fails loudly on a Ray that changed any of it.
"""

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray._private import ray_constants, services
from ray._private.node import Node
from ray._private.ray_constants import (
    DASHBOARD_ADDRESS,
    KV_NAMESPACE_DASHBOARD,
    PROCESS_TYPE_DASHBOARD_AGENT,
    PROCESS_TYPE_GCS_SERVER,
    PROCESS_TYPE_RAYLET,
    PROCESS_TYPE_RUNTIME_ENV_AGENT,
)
from ray._raylet import (  # type: ignore[attr-defined]
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    persist_port,
)

from eagleray import HOME

LAUNCHER: Final = Path(HOME) / "eagleray" / "worker_launcher.py"
AGENT_LAUNCHER: Final = LAUNCHER.with_name("agent_launcher.py")
AGENT_PORTS: Final = (
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
)
"""What Ray calls them, in its parameters and in the names of the files that say them."""


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which `ray.init` and `ray.shutdown` both take away.

    The first sets one that raises: in the middle of a start that is lost where nobody can catch it, or leaves Ray's
    locks held. The handler in C++ that comes in addition prints a stack, and asks for an alarm that aborts the process
    three seconds later, as it also does where a second signal comes while it is at work. It comes with the core worker,
    for which SIGTERM waits here until ours is back; threads that this starts never get one. Earlier threads may still
    run Ray's, which calls ours at its end: ours has to end the alarm. The second sets the default, which ends the
    process, before it ends Ray's processes.
    """
    replace, kill = ray._private.utils.set_sigterm_handler, Node.kill_all_processes
    make_core_worker = ray._raylet.CoreWorker

    def set_again() -> None:
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    def core_worker(*args: Any, **options: Any) -> Any:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        try:
            return make_core_worker(*args, **options)
        finally:
            set_again()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def kill_all_processes(*args: Any, **options: Any) -> None:
        set_again()
        kill(*args, **options)

    ray._private.utils.set_sigterm_handler = lambda handler: None
    Node.kill_all_processes = kill_all_processes
    ray._raylet.CoreWorker = core_worker
    try:
        yield
    finally:
        ray._raylet.CoreWorker = make_core_worker
        ray._private.utils.set_sigterm_handler, Node.kill_all_processes = replace, kill
        set_again()
        signal.alarm(0)


@contextlib.contextmanager
def process_groups() -> Iterator[None]:
    """Have each process of Ray's that `ray.init` starts be of a group of its own, with what it starts in turn.

    A signal to this process's group (of `timeout`, say, or of a shell that ends) is then for this process alone, which
    drains before it ends Ray.
    """
    kept = services.ConsolePopen
    services.ConsolePopen = partial(kept, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = kept


class DashboardStart:
    """Ray's dashboard, started beside what comes next: `ray.init` would wait for it before it starts a raylet.

    It stands for the node, whose table of processes other threads read, where Ray starts the dashboard.
    """

    def __init__(self, node: Node, start: Callable[..., None], include_dashboard: bool | None) -> None:
        """Begin, in a thread that stays: what a thread has started ends with it (`PR_SET_PDEATHSIG` of prctl(2))."""
        self._node = node
        self._start = partial(start, self, include_dashboard=include_dashboard, raise_on_failure=False)
        self._tried = threading.Event()
        self._webui_url = ""
        self.all_processes: dict[str, list[Any]] = {}
        threading.Thread(target=self._run, name="dashboard start", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # as of a cluster that ends meanwhile
            self._start()
        self._tried.set()
        threading.Event().wait()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has started by then, or will not."""
        return self._tried.wait(timeout_s)

    @property
    def address(self) -> str:
        """Host and port, "" where it has not started."""
        return self._webui_url or ""


@contextlib.contextmanager
def fewer_processes(*, dashboard: bool) -> Iterator[None]:
    """Have `ray.init`, where it starts a cluster, leave out what nobody here asks for anything, or waits for.

    The log monitor sends what workers print to drivers, none of which wants it (`log_to_driver=False`), and ten times a
    second it looks at every file of logs. Without a `dashboard` Ray starts its process all the same, and waits a second
    for it: to report statistics of use. The agents of nodes look for its address once a second, and log a stack each
    time, until there is one; they get one at which nobody listens.
    """

    def no_api_server(node: Node, **_: Any) -> None:
        node.get_gcs_client().internal_kv_put(DASHBOARD_ADDRESS.encode(), b"127.0.0.1:0", True, KV_NAMESPACE_DASHBOARD)

    def dashboard_beside(node: Node, *, include_dashboard: bool | None, **_: Any) -> None:
        node.dashboard = DashboardStart(node, start_api_server, include_dashboard)

    start_log_monitor, start_api_server = Node.start_log_monitor, Node.start_api_server
    Node.start_log_monitor = lambda node: None
    Node.start_api_server = dashboard_beside if dashboard else no_api_server
    try:
        yield
    finally:
        Node.start_log_monitor, Node.start_api_server = start_log_monitor, start_api_server


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """Have the raylet that `ray.init` or `ray start` starts start its workers by `LAUNCHER`."""
    kept = ray_constants.SETUP_WORKER_FILENAME
    if sys.platform == "linux":
        ray_constants.SETUP_WORKER_FILENAME = str(LAUNCHER)  # joined to the folder of Ray's own
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = kept


@contextlib.contextmanager
def bound_agents() -> Iterator[None]:
    """Have the raylet that `ray.init` starts start its agents by `AGENT_LAUNCHER`: none of them outlives it."""

    def python(component: str, *args: Any, **options: Any) -> list[str]:
        command: list[str] = kept(component, *args, **options)
        if component in agents and command == [sys.executable, "-u"]:  # a memory profiler is left alone
            command.append(str(AGENT_LAUNCHER))
        return command

    agents = (PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT)
    kept = services._build_python_executable_command_memory_profileable
    if sys.platform == "linux":
        services._build_python_executable_command_memory_profileable = python
    try:
        yield
    finally:
        services._build_python_executable_command_memory_profileable = kept


@contextlib.contextmanager
def chosen_agent_ports() -> Iterator[None]:
    """Have the raylet that `ray.init` starts know its agents' ports from the start.

    It would wait until they have written them, for 15 s at most; on a busy machine they take longer, and Ray does not
    start. Sockets that never listen keep the ports for them as long as there is the node.
    """

    def start_raylet(node: Node, *args: Any, **options: Any) -> None:
        node.kept_ports = [_kept_port() for _ in AGENT_PORTS]
        for name, kept_port in zip(AGENT_PORTS, node.kept_ports, strict=True):
            _, port = kept_port.getsockname()
            setattr(node._ray_params, name, port)
            persist_port(node.get_session_dir_path(), node.node_id, name, port)
        kept(node, *args, **options)

    kept = Node.start_raylet
    Node.start_raylet = start_raylet
    try:
        yield
    finally:
        Node.start_raylet = kept


def _kept_port() -> socket.socket:
    """Return a socket with a port that nobody is given meanwhile, and that one who asks for it may listen at."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("", 0))
    return kept


@contextlib.contextmanager
def as_served(*, dashboard: bool) -> Iterator[None]:
    """Have `ray.init`, where it starts a cluster, start that of `eagleray serve`."""
    with (
        process_groups(),
        forked_workers(),
        bound_agents(),
        chosen_agent_ports(),
        fewer_processes(dashboard=dashboard),
    ):
        yield


def dashboard_start() -> DashboardStart | None:
    """Return the start of the dashboard of the cluster that this process has started with one."""
    return getattr(ray._private.worker._global_node, "dashboard", None)


def prepare_end() -> None:
    """See to what `ray.shutdown` does badly, or does not know of, in a cluster that this process has started.

    At its SIGTERM Ray's autoscaler would tell the GCS, which has ended by then, and be killed after a second.
    """
    node = ray._private.worker._global_node
    if node is not None and node.head:
        node.kill_monitor(check_alive=False)
        if started := dashboard_start():
            node.all_processes.update(started.all_processes)


def dead_process_of_ray() -> str:
    """Return which process has ended of the cluster that this one started, and that does not live on without it."""
    node = ray._private.worker._global_node
    dead = [] if node is None else [name for name, _ in node.dead_processes()]
    return next((name for name in dead if name in (PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET)), "")
