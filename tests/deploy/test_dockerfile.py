"""The Dockerfile, done as it stands in a fresh virtual environment in place of its base."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from tests.repositories import EXAMPLES
from tests.serving import READY_LINE, ROOT, Client, Process, environment, tensor

pytestmark = pytest.mark.skipif("BUILD_IMAGE" not in os.environ, reason="downloads some hundred MB: make soak")

INSTALL_S = 1200.0
TEXT = (ROOT / "Dockerfile").read_text()


def instructions() -> Iterator[tuple[str, str]]:
    """Yield each instruction with what follows it."""
    text = re.sub(r"(?m)^#.*\n", "", TEXT).replace("\\\n", " ")
    yield from (tuple(line.split(None, 1)) for line in text.splitlines() if line.strip())  # type: ignore[misc]


class Image:
    """What the instructions make: a home with what was copied, and a virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.venv = folder / "venv"
        self.command: list[str] = []
        self.ports: set[int] = set()
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        self.env = environment(PATH=path, HOME=str(self.home), VIRTUAL_ENV=str(self.venv))
        self.env.pop("PYTHONPATH", None)

    def do(self, instruction: str, rest: str) -> None:
        """Do one; what only a container has is left out."""
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            self.env[name] = value
        elif instruction == "COPY":
            *names, target = [word for word in rest.split() if not word.startswith("--")]
            for name in names:
                self._copy(ROOT / name, self.home / target / (name if target.endswith("/") else ""))
        elif instruction == "RUN":
            done = subprocess.run(rest, shell=True, cwd=self.home, env=self.env, capture_output=True, text=True)
            assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"
            print(f"{rest}\n{done.stdout[-1000:]}")
        elif instruction == "ENV":
            self.env |= dict(word.split("=", 1) for word in rest.split())
        elif instruction == "EXPOSE":
            self.ports = set(map(int, rest.split()))
        elif instruction == "CMD":
            self.command = json.loads(rest)
        else:
            assert instruction in ("FROM", "USER", "WORKDIR"), instruction

    def _copy(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))  # as .dockerignore says
        else:
            shutil.copy(source, target)


@pytest.mark.timeout(INSTALL_S + 300)
def test_the_image_is_built_and_its_server_becomes_ready(tmp_path: Path) -> None:
    image = Image(tmp_path)
    for instruction, rest in instructions():
        image.do(instruction, rest)
    shown = subprocess.run(image.command, cwd=image.home, env=image.env, capture_output=True, text=True)
    assert (shown.returncode, "--model-repository" in shown.stdout) == (0, True), shown.stderr
    assert image.ports == {Settings.model_fields[f"{name}_port"].default for name in ("http", "grpc", "metrics")}
    shutil.copytree(EXAMPLES / "digits", tmp_path / "models/digits")
    # The command of the page's head: on this machine's loopback, and at ports that are free.
    (line,) = re.findall(r"^# +(eagleray serve .*)$", TEXT, re.MULTILINE)
    command = line.replace("/models", str(tmp_path / "models")).replace("0.0.0.0", "127.0.0.1")
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    program, *words = shlex.split(command)
    server = Process([str(image.venv / "bin" / program), *words, *ports], tmp_path / "log", image.env, image.home)
    try:
        server.wait_for(re.escape(READY_LINE))
        with Client(server.wait_for(r"HTTP\s+http://(\S+)")[1]) as client:
            answer = client.infer("digits", tensor("IMAGE", "FP32", [1, 64], [0] * 64))
            assert (answer.status, len(answer.json["outputs"][0]["data"])) == (200, 10), answer.body
        server.stop()
    finally:
        server.kill()
