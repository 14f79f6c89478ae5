"""deploy/systemd: a unit that systemd takes, and whose stop leaves `eagleray serve` its time."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from app.cli.main import RUNTIME_ERROR, main
from app.environment import unknown_variables
from app.settings import Settings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/systemd/eagleray.service"


@pytest.fixture
def service() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


def test_only_the_command_itself_hears_of_a_stop_and_has_time_for_it(service: dict[str, str]) -> None:
    assert service["KillMode"] == "mixed"
    least_s = Settings().drain_delay_s + Settings().exit_timeout_secs + 30
    assert float(service["TimeoutStopSec"]) >= least_s


def test_it_is_started_again_after_what_a_new_start_may_mend(service: dict[str, str]) -> None:
    assert (service["Restart"], service["OOMPolicy"]) == ("on-failure", "continue")
    assert service["RestartPreventExitStatus"].split() == [str(click.UsageError.exit_code)] != [str(RUNTIME_ERROR)]


def test_the_command_takes_its_flags_and_variables(service: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, command, *flags = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("eagleray", "serve")
    main.commands["serve"].make_context("serve", flags)
    variables = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not list(unknown_variables())
    assert variables["RAY_TMPDIR"] == f"/var/lib/{service['StateDirectory']}"
    assert service["StateDirectoryMode"] == "0700"  # Ray has everybody write who can enter it
    # Of the longest path of a socket in there (unix(7)).
    assert len(f"{variables['RAY_TMPDIR']}/ray/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store") < 108


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_it(tmp_path: Path) -> None:
    here = re.sub(r"(?m)^(User|Group)=.*$", r"\1=root", UNIT.read_text()).replace(
        "/opt/eagleray/bin/eagleray", "/bin/true"
    )
    (tmp_path / UNIT.name).write_text(here)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])
