"""What the README tells a reader to type, in the order in which it stands there."""

import http.cookiejar
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import psutil
import pytest
import yaml

from tests.e2e import ray_head
from tests.repositories import EXAMPLES
from tests.serving import READY_LINE, ROOT, Process, environment, free_port, run, wait_until

README = (ROOT / "README.md").read_text()
SHELL_BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


APPLICATION = """
import sys
import ray
from examples.held_out import LABELS, held_out_pngs
from ray import serve as ray_serve

@ray_serve.deployment(ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1)
class Reader:
    async def __call__(self, png):
%s
        return int(scores["SCORES"].argmax())

ray.init(address=sys.argv[1], log_to_driver=False)
handle = ray_serve.run(Reader.bind(), name="reader", route_prefix=None)
images, labels = held_out_pngs()
print(LABELS[handle.remote(images[0]).result(timeout_s=60)] == labels[0])
ray_serve.delete("reader")
"""
"""An application of somebody else's, around the README's lines on handles."""


def commands() -> list[str]:
    """Return every command of the README's shell blocks, continued lines joined, comments taken off."""
    lines = "\n".join(SHELL_BLOCK.findall(README)).replace("\\\n", " ").splitlines()
    stripped = (re.sub(r"\s+# .*", "", line.removeprefix("$ ")).strip() for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]


def test_readme_gives_the_two_commands() -> None:
    assert {"make serve", "make test"} <= set(commands())


@pytest.mark.parametrize("target", ["serve", "test", "lint", "bench", "install", "clean"])
def test_makefile_has_the_target(target: str) -> None:
    done = run("make", "--dry-run", "--assume-old=.venv/.installed", target)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "target", sorted({word for line in commands() for word in line.split()[1:2] if line.startswith("make ")})
)
def test_makefile_has_what_the_readme_makes(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


class Reader:
    """Types one command after the other, in a home of their own; only ports and folders are others."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self._folder = folder
        self._models = folder / "models"
        shutil.copytree(EXAMPLES / "digits", self._models / "digits")
        path = f"{ray_head.BIN}{os.pathsep}{os.environ['PATH']}"
        self._env = environment(HOME=str(self.home), PATH=path)
        self._running: list[Process] = []
        self._new_ports()
        self._dashboard = self._address = ""

    def _new_ports(self) -> None:
        self._ports = {"8000": free_port(), "8001": free_port(), "8002": free_port()}
        names = zip(("http", "grpc", "metrics"), self._ports.values(), strict=True)
        self._port_flags = [f"--{name}-port={port}" for name, port in names]

    def type(self, line: str) -> None:
        """Run a command of the README; one that is not known here fails, and so must be added."""
        words = shlex.split(line)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            self._env[name] = value
        match words:
            case ["make", "serve"]:
                arguments = [f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/.installed"]
                self._serve(["make", *arguments, "serve", f"ARGS={' '.join(self._port_flags)}"])
            case ["make", "test"]:
                pass  # which runs this
            case ["curl", *_]:
                self._curl(words)
            case [".venv/bin/eagleray", "serve", *rest]:
                self.stop()
                self._serve([str(ray_head.BIN / "eagleray"), "serve", *self._here(rest), *self._port_flags])
                self._run_client()
            case [".venv/bin/eagleray", command, *rest]:
                assert "digits" in self._finish([str(ray_head.BIN / "eagleray"), command, *self._here(rest)])
            case ["eagleray", "ray", "start", "--head"]:
                self.stop()
                self._start_head()
            case ["serve", "deploy", "serve_config.yaml"]:
                self._finish([*words[:2], str(self._config()), "--address", self._dashboard])
            case ["serve", "status"]:
                wait_until(lambda: self._all_running(words), "all applications RUNNING", 120, 0.5)
                self._run_application()
            case _:
                raise AssertionError(f"this test does not know how to run {line!r}")

    def _here(self, words: list[str]) -> list[str]:
        return [str(self._models) if word == "/models" else word for word in words]

    def _finish(self, words: list[str]) -> str:
        done = run(*words, env=self._env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _start(self, words: list[str]) -> Process:
        started = Process(words, self._folder / f"log{len(self._running)}", self._env)
        self._running.append(started)
        return started

    def _serve(self, words: list[str]) -> None:
        self._new_ports_in(words)
        server = self._start(words)
        server.wait_for(re.escape(READY_LINE))
        self._open_dashboard(server.wait_for(r"dashboard\s+(\S+)")[1])

    def _new_ports_in(self, words: list[str]) -> None:
        """Nothing of a server that was stopped may be asked by mistake."""
        before = self._port_flags
        self._new_ports()
        for index, word in enumerate(words):
            for old, new in zip(before, self._port_flags, strict=True):
                words[index] = word = word.replace(old, new)

    def _open_dashboard(self, url: str) -> None:
        """Open the URL that was printed in a browser that keeps cookies, and what the page then asks for."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        with browser.open(url, timeout=10) as page:
            root = re.match(r"http://[^/]+", page.url)
            assert root
            (script,) = re.findall(rb'src="\./([^"]+\.js)"', page.read())
        with browser.open(f"{root[0]}/{script.decode()}", timeout=10) as answer:
            assert len(answer.read()) > 100_000
        with browser.open(f"{root[0]}/api/serve/applications/", timeout=10) as answer:
            assert "eagleray" in json.load(answer)["applications"]

    def _curl(self, words: list[str]) -> None:
        here = [re.sub(r"127\.0\.0\.1:(800\d)", lambda m: f"127.0.0.1:{self._ports[m[1]]}", word) for word in words]
        answer = self._finish([here[0], "--fail", *here[1:]])
        if not here[-1].endswith("/metrics"):
            assert json.loads(answer)

    def _run_client(self) -> None:
        code = next(block for block in PYTHON_BLOCK.findall(README) if "InferenceServerClient" in block)
        scores = self._finish([sys.executable, "-c", code.replace("8000", str(self._ports["8000"]))])
        assert scores.startswith("[[")

    def _run_application(self) -> None:
        lines = next(block for block in PYTHON_BLOCK.findall(README) if "get_app_handle" in block)
        code = APPLICATION % indent(lines, " " * 8)
        assert self._finish([sys.executable, "-c", code, self._address]).splitlines()[-1:] == ["True"]

    def _start_head(self) -> None:
        gcs_port, port = free_port(), free_port()
        self._address = f"127.0.0.1:{gcs_port}"
        self._dashboard = f"http://127.0.0.1:{port}"
        self._env |= ray_head.ENDS_SOON
        words = ray_head.command(self._folder / "ray", gcs_port, port, ray=ray_head.OURS)
        self._start(words).wait_for("Ray runtime started")

    def _config(self) -> Path:
        """Return the README's file with other ports."""
        config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
        names = zip(("http_port", "grpc_port", "metrics_port"), self._ports.values(), strict=True)
        config["applications"][0]["args"] |= dict(names)
        path = self._folder / "serve_config.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def _all_running(self, words: list[str]) -> bool:
        applications = yaml.safe_load(self._finish([*words, "--address", self._dashboard]))["applications"]
        models = applications.keys() - {"eagleray"}
        return bool(models) and {each["status"] for each in applications.values()} == {"RUNNING"}

    def stop(self) -> None:
        """Stop what runs, as Ctrl-C does: `make` waits for what it started."""
        while self._running:
            process = self._running[-1]
            started = set(process.descendants())
            servers = [each for each in started if each.name() == "eagleray"]
            for target in servers or [psutil.Process(process.pid)]:
                target.send_signal(signal.SIGTERM)
            process.exit_code()
            process.assert_none_left(started)
            self._running.pop()

    def kill(self) -> None:
        """End what is left after a failure."""
        for process in self._running:
            process.kill()


@pytest.fixture
def reader() -> Iterator[Reader]:
    # A short path, for the Unix sockets of Ray in it.
    folder = Path(tempfile.mkdtemp(prefix="er-me-", dir="/tmp"))
    reader = Reader(folder)
    try:
        yield reader
    finally:
        reader.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_all_commands_work_in_their_order_in_an_empty_home(reader: Reader) -> None:
    for line in commands():
        reader.type(line)
    reader.stop()
    assert not (reader.home / ".ray" / "auth_token").exists()
