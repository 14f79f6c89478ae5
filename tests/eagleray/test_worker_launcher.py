"""Workers that a fork server makes are as those that Ray starts, and one that is to be another is started by Ray."""

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from eagleray import worker_launcher
from eagleray.worker_launcher import ForkServer, address, hand_over, hand_over_or_listen, is_taken, listen, read_order
from tests.serving import environment, run, wait_until

SCRIPT = "/ray/default_worker.py"
NODE = "--node-id=1a2b"
PYTHON = "--language=PYTHON"


def context(**values: Any) -> str:
    return "--serialized-runtime-env-context=" + json.dumps(values)


@pytest.mark.parametrize(
    "arguments",
    [
        [SCRIPT, NODE, PYTHON, context(env_vars={"A": "1"})],
        [SCRIPT, NODE, PYTHON, context(py_executable="/other/python")],
        [SCRIPT, NODE, PYTHON, context(command_prefix=["cd", "/", "&&"])],
        [SCRIPT, NODE, PYTHON, context(override_worker_entrypoint="/other.py")],
        [SCRIPT, NODE, PYTHON, context(of_a_later_ray="x")],
        [SCRIPT, NODE, "--language=JAVA"],
        [SCRIPT, NODE],
        ["-m", "ray.util.client.server", PYTHON],
    ],
)
def test_a_worker_that_is_to_be_another_is_left_to_ray(arguments: list[str]) -> None:
    assert read_order(arguments) is None


def test_an_environment_that_changes_nothing_is_none() -> None:
    plain = context(py_executable=sys.executable, env_vars={}, command_prefix=[])
    order = read_order([SCRIPT, NODE, PYTHON, plain, "--session-name=x"])
    assert order is not None
    assert order["arguments"] == [SCRIPT, NODE, "--session-name=x"]
    assert order["environment"] == dict(os.environ)


@pytest.fixture
def order() -> dict[str, Any]:
    found = read_order([SCRIPT, f"--node-id={os.urandom(8).hex()}", PYTHON])
    assert found is not None
    return found


def test_one_process_of_a_node_is_the_fork_server(order: dict[str, Any]) -> None:
    with pytest.raises(ConnectionRefusedError):
        hand_over(order)
    listener = listen(order)
    assert listener is not None and listen(order) is None
    listener.close()
    again = listen(order)
    assert again is not None
    again.close()


def test_launchers_that_start_together_have_one_server(order: dict[str, Any]) -> None:
    """One that has its address, but does not listen yet, is waited for."""
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as threads:
        listener.bind(address(order))
        other = threads.submit(hand_over_or_listen, order)
        time.sleep(0.1)
        assert not other.done()
        listener.listen()
        with listener.accept()[0] as connection:
            files: list[int] = []
            assert ForkServer(order, listener, os.getppid())._receive(connection, files) == order
            assert is_taken(connection)
            for file in files:
                os.close(file)
        assert other.result() == (True, None)


def send(order: dict[str, Any], body: bytes, *, streams: int = 3, missing: int = 0) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address(order))
    socket.send_fds(connection, [(len(body) + missing).to_bytes(4, "big")], list(range(streams)))
    connection.sendall(body)
    return connection


@pytest.mark.parametrize("other", ["script", "variable", "folder", "no JSON", "streams", "cut off", "gone"])
def test_a_server_makes_no_worker_that_would_be_another(
    order: dict[str, Any], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that nobody waits for: it has been started otherwise."""
    monkeypatch.setattr(worker_launcher, "_WAIT_S", 1.0)
    monkeypatch.setattr(ForkServer, "_fork", lambda server: pytest.fail("it made one"))
    listener = listen(order)
    assert listener is not None
    server = ForkServer(order, listener, os.getppid())
    server._ahead = SimpleNamespace(is_as_installed=lambda: True)
    body = json.dumps(order).encode()
    if other == "script":
        body = json.dumps({**order, "arguments": ["/other.py", *order["arguments"][1:]]}).encode()
    elif other == "variable":
        body = json.dumps({**order, "environment": {**order["environment"], "OMP_NUM_THREADS": "3"}}).encode()
    elif other == "folder":
        body = json.dumps({**order, "folder": [1, 2]}).encode()
    elif other == "no JSON":
        body = b"{"
    connection = send(order, body, streams=2 if other == "streams" else 3, missing=1 if other == "cut off" else 0)
    if other in ("cut off", "gone"):
        connection.close()
    with listener, connection, listener.accept()[0] as accepted:
        assert server._serve(accepted) is None


MADE_FOR_ONE = """
import json, os, sys
from types import SimpleNamespace
from eagleray import worker_launcher as launcher

order, told = json.loads(sys.argv[1]), sys.argv[2]
listener = launcher.listen(order)
server = launcher.ForkServer({**order, "environment": dict(os.environ)}, listener, os.getppid())
server._ahead = SimpleNamespace(is_as_installed=lambda: True)
if not (asks := os.fork()):
    listener.close()
    if told != "taken":
        launcher._MADE = b"more"  # is never told: this gives up
    os.write(1, f"handed over {launcher.hand_over(order)}\\n".encode())  # at once, as another writes there too
    os._exit(0)
with listener.accept()[0] as connection:
    made = server._serve(connection)
if made:
    os.write(1, f"made {made == order}\\n".encode())
    os._exit(0)
os.waitpid(asks, 0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@pytest.mark.parametrize(
    ("told", "said"), [("taken", ["handed over True", "made True"]), ("given up", ["handed over False"])]
)
def test_a_worker_that_was_made_is_one_if_its_launcher_still_waits(
    order: dict[str, Any], told: str, said: list[str]
) -> None:
    """A launcher that gives up just then starts it itself; which job's it is said to be is all the same."""
    body = json.dumps({**order, "environment": {**environment(), "RAY_JOB_ID": "02000000"}})
    done = run(sys.executable, "-c", MADE_FOR_ONE, body, told)
    assert (sorted(done.stdout.splitlines()), done.stderr) == (sorted(said), "")


OUTDATED = """
import json, os, sys, time
from types import SimpleNamespace
from eagleray import worker_launcher as launcher

order = {**json.loads(sys.argv[1]), "environment": dict(os.environ)}
installed, (reader, writer), server = iter([True, False]), os.pipe(), os.getpid()
listener = launcher.listen(order)
forks = launcher.ForkServer(order, listener, os.getppid())
forks._ahead = SimpleNamespace(is_as_installed=lambda: next(installed))
if not os.fork():
    listener.close()
    os.write(writer, str([launcher.hand_over(order) for _ in range(2)]).encode())
    os._exit(0)
launcher.signal.signal(launcher.signal.SIGCHLD, launcher.signal.SIG_IGN)
forks.serve()
print(os.read(reader, 100).decode())
time.sleep(0.5)  # in which one that is no parent ends
print(os.getppid() == server)
try:
    launcher.hand_over(order)
except ConnectionRefusedError:
    print("another may be the server")
"""


def test_a_server_that_makes_no_more_workers_is_the_parent_of_those_that_it_has_made(order: dict[str, Any]) -> None:
    done = run(sys.executable, "-c", OUTDATED, json.dumps(order))
    assert (done.stdout.splitlines(), done.stderr) == (["[True, False]", "True", "another may be the server"], "")


def test_another_user_is_told_nothing(order: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(order)
    assert listener is not None
    with listener:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert not hand_over(order)
        assert listener.accept()[0].recv(1) == b""


LAUNCHER = str(Path(worker_launcher.__file__))


def test_a_fork_server_ends_with_who_started_it_whenever_that_is() -> None:
    script = str(Path(ray.__file__).parent / "_private/workers/default_worker.py")
    started = [sys.executable, LAUNCHER, script, f"--node-id={os.urandom(8).hex()}", PYTHON]
    code = (
        "import os, subprocess; os.environ['RAY_RAYLET_PID'] = str(os.getpid()); "
        f"print(subprocess.Popen({started}, stdout=-3, stderr=-3).pid)"
    )
    done = run(sys.executable, "-c", code)
    wait_until(lambda: not psutil.pid_exists(int(done.stdout)), "the end of the fork server")


def test_where_no_process_can_be_made_the_only_worker_is_this_one(order: dict[str, Any]) -> None:
    code = (
        "import os, socket, sys\nfrom eagleray import worker_launcher as launcher\n"
        f"order = {order!r} | {{'arguments': [{ray.__file__!r}]}}\n"
        "def fork(): raise BlockingIOError\n"
        "os.fork = fork\n"
        "listener = socket.socket()\n"
        "print(launcher.ForkServer(order, listener, os.getppid()).run() == order, listener.fileno())"
    )
    assert run(sys.executable, "-c", code).stdout.strip() == "True -1"


def test_processes_that_would_draw_the_same_are_known() -> None:
    code = (
        "import ray; from eagleray.worker_launcher import draws_alike as alike; before = alike(); "
        "ray.ObjectRef.from_random(); print(before, alike())"
    )
    assert run(sys.executable, "-c", code).stdout.strip() == "False True"


WORKERS = """
import json, logging, multiprocessing, os, random, resource, signal, sys, threading, time
import psutil, ray
from app.cli.ray_internals import forked_workers, process_groups

forks = sys.argv[1] == "forks"
launcher = sys.argv[1] != "starts"

def threads():
    import numpy, threadpoolctl
    return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]

@ray.remote(num_cpus=0)
class Worker:
    def pid(self):
        return os.getpid()

    def parent(self):
        return psutil.Process().parent().cmdline()

    def facts(self):
        status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
        process = psutil.Process()
        return {
            "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
            "path": sys.path,
            "main": sys.modules["__main__"].__file__,
            "arguments": [each.partition("=")[0] for each in sys.argv],
            "folder": os.getcwd(),
            "leads its group": os.getpgrp() == os.getpid(),
            "oom": open("/proc/self/oom_score_adj").read(),
            "nice": process.nice(),
            "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
            "umask": status["Umask"].strip(),
            "variables": sorted(os.environ),
            "job": ray.get_runtime_context().get_job_id(),
            "files": sorted(process.open_files() and {os.path.basename(each.path)[:7] for each in process.open_files()}),
            "streams": [os.readlink(f"/proc/self/fd/{each}")[-4:] for each in range(3)],
            "loop": type(__import__("asyncio").new_event_loop()).__module__,
            "name": process.cmdline()[0].split("(")[0],
            "number": threading.main_thread().native_id == os.getpid(),
            "started": [os.path.basename(each.partition("=")[0]) for each in sys.orig_argv],
            "attributes": sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
            "logs": logging.raiseExceptions,
            "warns": ray._private.worker.blocking_get_inside_async_warned,
            "modules": sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names),
            "threads": threads(),
        }

    def threads(self):
        return threads()

    def chance(self):
        import numpy
        key = multiprocessing.current_process().authkey.hex()
        return [random.random(), numpy.random.random(), key, ray.ObjectRef.from_random().hex(), ray.put(1).hex()]


def new_and_ready(**options):
    worker = Worker.options(**options).remote()
    ray.get(worker.pid.remote())
    return worker

with process_groups():
    if launcher:
        with forked_workers():
            ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    else:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)

def is_forked(worker):
    return any(each.endswith("worker_launcher.py") for each in ray.get(worker.parent.remote()))

told = {}
workers = [new_and_ready() for _ in range(3)]
told["forked"] = [is_forked(worker) for worker in workers]
told["facts"] = [ray.get(worker.facts.remote()) for worker in workers]
told["chances"] = [ray.get(worker.chance.remote()) for worker in workers]
told["threads of two cores"] = ray.get([Worker.options(num_cpus=2).remote().threads.remote()])
other = new_and_ready(runtime_env={"env_vars": {"A": "1"}})
told["with a runtime environment"] = is_forked(other)
if forks:
    server = psutil.Process(ray.get(workers[0].pid.remote())).parent()
    os.kill(ray.get(workers[0].pid.remote()), signal.SIGKILL)
    time.sleep(1)
    told["after a death"] = [ray.get(worker.pid.remote()) > 0 for worker in workers[1:]], server.is_running()
    told["zombies"] = sum(each.status() == psutil.STATUS_ZOMBIE for each in server.children())
    server.kill()
    told["after the server's"] = [ray.get(worker.pid.remote()) > 0 for worker in workers[1:]], is_forked(new_and_ready())
    raylet = next(each for each in psutil.Process().children() if each.name() == "raylet")
    server = next(each for each in raylet.children() if "worker_launcher.py" in " ".join(each.cmdline()))
    raylet.kill()
    told["left after the raylet's"] = len(psutil.wait_procs([server], timeout=5)[1])
ray.shutdown()
print(json.dumps(told))
"""


def workers(how: str, **variables: str) -> dict[str, Any]:
    done = run(sys.executable, "-c", WORKERS, how, env=environment(**variables), timeout_s=100)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_forked_workers_are_as_those_that_ray_starts() -> None:
    forked, plain = (workers(how, PYTHONNOUSERSITE="1") for how in ("forks", "starts"))
    assert forked["forked"] == [True] * 3 and plain["forked"] == [False] * 3
    modules = set(plain["facts"][0].pop("modules"))
    for facts in forked["facts"]:
        assert modules >= set(facts.pop("modules"))  # what those that were revealed have imported in turn may be hidden
        assert facts == plain["facts"][0]
    for values in zip(*forked["chances"], strict=True):
        assert len(set(values)) == 3
    for told in (forked, plain):
        assert told["facts"][0]["threads"] == [1] and told["threads of two cores"] == [[2]]
    assert not forked["with a runtime environment"]
    assert forked["after a death"] == [[True, True], True]
    assert forked["zombies"] == 0
    assert forked["after the server's"] == [[True, True], True]
    assert forked["left after the raylet's"] == 0


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_where_every_process_has_a_thread_none_is_forked(tmp_path: Path) -> None:
    """As what traces or measures a program may start one in each interpreter."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    told = workers("starts with threads", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert told["forked"] == [False] * 3
