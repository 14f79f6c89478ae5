"""What `eagleray serve` prints for whoever starts it, and what it does for who stops it at once."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.cli import local_server
from app.cli.local_ray import RayOptions, StartFailed
from app.cli.local_server import LocalServer, example_request, for_url
from app.cli.no_model import NO_MODEL
from app.cli.progress import Progress
from app.settings import Settings
from deployments import serve_internals
from deployments.control.directory import READY, Directory, ModelEntry, VersionEntry
from tests.serving import environment, run


def test_what_is_to_be_tried_can_be_pasted_into_a_shell_whatever_names_hold() -> None:
    name, tensor = "a&b<c> it's %2F/😀", "it's $HOME"
    config = {"name": name, "max_batch_size": 0, "input": [{"name": tensor, "data_type": "TYPE_FP32", "dims": ["2"]}]}
    entry = ModelEntry(json.dumps(config), versions={1: VersionEntry(READY)})
    found = example_request(Directory(models={name: entry}))
    assert found is not None
    path, body = shlex.split(" ".join(found), posix=True)
    assert path == "/v2/models/a%26b%3Cc%3E%20it%27s%20%252F%2F%F0%9F%98%80/infer"
    assert json.loads(body)["inputs"][0]["name"] == tensor


def test_addresses_of_ipv6_are_in_brackets_in_what_is_printed() -> None:
    assert [for_url(each) for each in ("::1", "127.0.0.1", "host")] == ["[::1]", "127.0.0.1", "host"]


def test_what_cannot_be_tried_is_not_suggested() -> None:
    config = json.dumps(
        {"name": "m", "max_batch_size": 0, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": ["2"]}]}
    )
    version = VersionEntry(READY)
    directory = Directory(models={"m": ModelEntry(config, versions={1: version})})
    version.lost_its_replicas()  # they are replaced, and requests wait for them
    assert example_request(directory) is not None
    version.failed_to_load("no")
    assert example_request(directory) is None


@pytest.mark.parametrize(
    "more",
    [{"model_transaction_policy": {"decoupled": True}}, {"sequence_batching": {}}],
    ids=["decoupled", "sequences"],
)
def test_a_model_that_a_plain_request_cannot_ask_is_not_suggested(more: dict[str, Any]) -> None:
    config = {"name": "m", "max_batch_size": 0, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": ["2"]}]}
    entry = ModelEntry(json.dumps(config | more), versions={1: VersionEntry(READY)})
    assert example_request(Directory(models={"m": entry})) is None


def test_what_is_deployed_is_imported_while_ray_starts() -> None:
    code = "import sys, app.cli.local_server; print('ray' in sys.modules, 'ray.serve' in sys.modules)"
    done = run(sys.executable, "-c", code, env=environment())
    assert done.stdout == "True False\n", done.stderr


def test_the_third_signal_kills_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(model_repository=("/m",), http_port=0, grpc_port=0, metrics_port=0)
    server, done = LocalServer(settings, RayOptions(dashboard=False)), []
    monkeypatch.setattr(local_server, "adopt_orphans", lambda: None)
    monkeypatch.setattr(local_server, "kill_all", lambda: done.append("kill"))
    monkeypatch.setattr(os, "_exit", done.append)
    for _ in range(2):
        server._on_signal(signal.SIGTERM, None)
    assert done == []
    server._on_signal(signal.SIGINT, None)
    assert done == ["kill", 130]


def test_signals_while_everything_is_killed_leave_nothing(tmp_path: Path) -> None:
    """The fourth comes when a process is dead whose own are not: nobody would find them any more."""
    script = f"""
import os, psutil, signal, subprocess
from app.cli.local_ray import RayOptions
from app.cli.local_server import LocalServer
from app.settings import Settings

server = LocalServer(Settings(model_repository=("/m",)), RayOptions(dashboard=False))
server._handle_signals()
parent = subprocess.Popen(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $! >{tmp_path}/child; wait"])
while not os.path.exists("{tmp_path}/child") or not open("{tmp_path}/child").read():
    pass
kill = psutil.Process.kill

def kill_and_signal(process):
    kill(process)
    if process.pid == parent.pid:
        parent.wait()
        os.kill(os.getpid(), signal.SIGTERM)

psutil.Process.kill = kill_and_signal
for _ in range(3):
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    child = int((tmp_path / "child").read_text())
    left = psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE
    if left:
        os.kill(child, signal.SIGKILL)
    assert (done.returncode, left) == (130, False), done.stderr.decode()


def test_nothing_is_deployed_and_nobody_asked_once_it_is_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops it while Ray starts waits for no ingress, which would have to start first."""
    settings = Settings(model_repository=("/m",), http_port=0, grpc_port=0, metrics_port=0)
    server, done = LocalServer(settings, RayOptions(dashboard=False)), []

    def start_ray(progress: object) -> None:
        done.append("start")
        server._on_signal(signal.SIGINT, None)

    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(local_server, "adopt_orphans", lambda: None)
    monkeypatch.setattr(local_server, "end_everything", lambda timeout_s: done.append("end"))
    monkeypatch.setattr(server, "_start_ray", start_ray)
    monkeypatch.setattr(server, "_require_alone", lambda: None)
    monkeypatch.setattr(server, "_handle", lambda deployment: done.append(f"ask {deployment}"))
    monkeypatch.setattr(server, "_deploy", lambda: done.append("deploy"))
    monkeypatch.setattr(server, "_wait", lambda progress: done.append("wait"))
    monkeypatch.setattr(server._ray, "stop", lambda: done.append("stop"))
    assert server.run() == 0
    assert done == ["start", "stop", "end"]


class Controller:
    """Tells followers one thing after the other, and the last for ever; `ingress` says whether ingresses have settled."""

    def __init__(self, told: list[dict[str, Any] | None], *, ingress: bool = True) -> None:
        self._told = told
        self._ingress = ingress
        self.watch = self

    def remote(self, *known: Any) -> "Controller":
        return self

    def cancel(self) -> None: ...

    def result(self, timeout_s: float) -> dict[str, Any] | None:
        time.sleep(0.02)
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]

    def wait_in(self, server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Directory:
        monkeypatch.setattr(local_server, "_START_TIMEOUT_S", 0.1)
        monkeypatch.setattr(serve_internals, "with_plain_calls", lambda handle: handle)
        monkeypatch.setattr(server, "_handle", lambda deployment: self)
        monkeypatch.setattr(server, "_ingresses_settled", lambda: self._ingress)
        monkeypatch.setattr(server, "_check_deployments", lambda: None)
        monkeypatch.setattr(server._ray, "require_alive", lambda: None)
        with Progress() as progress:
            return server._wait(progress)


def news(*, settled: bool) -> dict[str, Any]:
    return {"epoch": "e", "generation": 0, "settled": settled, "full": True, "tables": {}}


def test_models_have_all_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LocalServer(Settings(model_repository=("/m",)), RayOptions(dashboard=False))
    reads = [{"unread": "fetching model 'm' from s3://m"}] * 10
    loads = [news(settled=False), *[None] * 10]
    controller = Controller([*reads, *loads, news(settled=True)])
    assert controller.wait_in(server, monkeypatch).settled


def test_an_answer_of_the_controller_is_kept_until_the_next_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller([news(settled=False), None, news(settled=True)])
    answers: list[weakref.ref[Any]] = []
    kept: list[int] = []

    class Answer:
        def result(self, timeout_s: float) -> dict[str, Any] | None:
            kept.append(sum(answer() is not None for answer in answers))
            return Controller.result(controller, timeout_s)

        def cancel(self) -> None: ...

    def remote(*known: Any) -> Answer:
        answer = Answer()
        answers.append(weakref.ref(answer))
        return answer

    monkeypatch.setattr(controller, "remote", remote)
    assert controller.wait_in(LocalServer(Settings(model_repository=("/m",)), RayOptions(dashboard=False)), monkeypatch)
    assert kept == [1, 2, 2]


@pytest.mark.parametrize(
    "controller",
    [Controller([None]), Controller([news(settled=True)], ingress=False)],
    ids=["a controller that says nothing", "ingresses that are not there"],
)
def test_a_start_without_a_controller_or_an_ingress_fails_in_time(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalServer(Settings(model_repository=("/m",)), RayOptions(dashboard=False))
    with pytest.raises(StartFailed, match="not ready after 0 s"):
        controller.wait_in(server, monkeypatch)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\n  last\n"), "ValueError: last"),
        (TimeoutError(), "TimeoutError: no reason given"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
    ],
)
def test_whatever_fails_at_the_start_is_one_sentence_after_everything_has_stopped(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(model_repository=("/m",), http_port=0, grpc_port=0, metrics_port=0)
    server, done = LocalServer(settings, RayOptions(dashboard=False)), []

    def fail(progress: object) -> None:
        raise error

    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(server, "_start_ray", lambda progress: None)
    monkeypatch.setattr(server, "_require_alone", lambda: None)
    monkeypatch.setattr(server, "_deploy", lambda: None)
    monkeypatch.setattr(server, "_wait", fail)
    monkeypatch.setattr(server, "_shut_down", lambda: done.append("shut down"))
    with pytest.raises(StartFailed) as raised:
        server.run()
    assert str(raised.value).startswith(f"{text}\n  logs: ") and done == ["shut down"]


@pytest.mark.parametrize(("mode", "told"), [("none", True), ("poll", True), ("explicit", False)])
def test_repositories_without_models_are_said_to_have_none(
    mode: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(model_repository=("/m",), model_control_mode=mode)  # type: ignore[arg-type]
    LocalServer(settings, RayOptions(dashboard=False))._announce(Directory(), {"grpc": 8001})
    assert (NO_MODEL in capsys.readouterr().out) == told


@pytest.mark.parametrize("keys", [(), (f"web infer {'0' * 64}",)], ids=["no keys", "keys"])
def test_the_page_of_the_api_is_suggested_where_a_browser_gets_it(
    keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(model_repository=("/m",), api_key=keys)
    LocalServer(settings, RayOptions(dashboard=False))._announce(Directory(), {"http": 8000})
    told = capsys.readouterr().out
    assert ("/v2/docs" in told, "$KEY" in told) == (not keys, bool(keys))
