import click
import pytest
from click.testing import CliRunner

from app.cli.ignored_flags import IGNORED_FLAGS
from app.cli.main import ignored_options
from app.settings import Settings


@click.command()
@ignored_options
def command() -> None:
    click.echo("ran")


@pytest.mark.parametrize("flag", IGNORED_FLAGS)
def test_a_flag_of_tritonserver_without_meaning_here_is_accepted_with_a_warning(flag: str) -> None:
    result = CliRunner().invoke(command, [f"--{flag}=1", f"--{flag}", "2"])
    assert result.exit_code == 0
    assert "ran" in result.output
    assert f"warning: --{flag} has no effect here" in result.output


def test_no_setting_is_among_them() -> None:
    assert not {flag.replace("-", "_") for flag in IGNORED_FLAGS} & set(Settings.model_fields)
