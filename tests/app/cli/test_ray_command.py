"""`eagleray ray …` is Ray's own command line."""

import os
from typing import Any

import pytest
from click.testing import CliRunner
from ray._private import ray_constants
from ray.scripts import scripts

from app.cli.main import main
from app.cli.ray_internals import LAUNCHER
from app.cli.ray_variables import NODE_VARIABLES
from tests.serving import EAGLERAY, run


def test_what_it_is_told_and_how_it_ends_are_rays() -> None:
    for arguments, code, text in (
        (["--version"], 0, "ray, version 2."),
        (["start", "--help"], 0, "Usage: ray start"),
        (["start", "--no-such-flag"], 2, "No such option"),
        (["nonsense"], 2, "No such command"),
    ):
        done = run(EAGLERAY, "ray", *arguments)
        assert done.returncode == code
        assert text in done.stdout + done.stderr


def test_nodes_run_as_a_server_needs_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    class Command:
        def main(self, arguments: tuple[str, ...], prog_name: str) -> None:
            told.update(os.environ, arguments=arguments, script=ray_constants.SETUP_WORKER_FILENAME)

    for name in NODE_VARIABLES:
        monkeypatch.setenv(name, "")  # what the command sets goes with what is set here
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_ROTATION_MAX_BYTES", "1000")
    monkeypatch.setattr(scripts, "cli", Command())
    done = CliRunner().invoke(main, ["ray", "start", "--head", "--port", "1"], catch_exceptions=False)
    assert (done.exit_code, told["arguments"]) == (0, ("start", "--head", "--port", "1"))
    assert told["script"] == str(LAUNCHER) != ray_constants.SETUP_WORKER_FILENAME
    assert {name: told[name] for name in NODE_VARIABLES} == {**NODE_VARIABLES, "RAY_ROTATION_MAX_BYTES": "1000"}
