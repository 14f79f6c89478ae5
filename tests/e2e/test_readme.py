"""What the README tells a reader to type."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.e2e.conftest import isolated
from tests.serving import ROOT, Process, Server, run

BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return every command of the README's shell blocks, continued lines joined."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


CURL_LINES = [command for command in commands() if command.startswith("curl ")]


@pytest.mark.parametrize("command", ["make serve", "make test"])
def test_readme_gives_the_two_commands(command: str) -> None:
    assert any(line.split("#")[0].strip() == command for line in commands())


@pytest.mark.parametrize("target", ["serve", "test", "lint", "bench", "install", "clean"])
def test_makefile_has_the_target(target: str) -> None:
    done = run("make", "--dry-run", "--assume-old=.venv/.installed", target)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "target", sorted({word for line in commands() for word in line.split()[1:2] if line.startswith("make ")})
)
def test_makefile_has_what_the_readme_makes(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@isolated
@pytest.mark.parametrize("command", CURL_LINES)
def test_curl_line_works_when_pasted(server: Server, command: str, tmp_path: Path) -> None:
    here = re.sub(r"(localhost|127\.0\.0\.1):8000", server.address, command)
    here = re.sub(r"(localhost|127\.0\.0\.1):8002", server.metrics_address, here)
    words = shlex.split(here.split(" | ")[0])
    curl = Process([words[0], "--fail", "--silent", *words[1:]], tmp_path / "answer")
    assert curl.exit_code() == 0, curl.log()
    if "/metrics" not in here and "/health/" not in here and not here.endswith("/ready"):
        assert json.loads(curl.log())
