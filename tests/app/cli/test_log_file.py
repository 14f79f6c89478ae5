"""A log file that cannot be written is a fault of the command line, not of a server that runs."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import main
from app.settings import Settings


def test_a_log_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none" / "log"
    done = CliRunner().invoke(main, ["serve", "--model-repository", str(tmp_path), "--log-file", str(path)])
    assert done.exit_code == 2
    assert f"--log-file: [Errno 2] No such file or directory: '{path}'" in done.output


def test_where_there_is_no_command_line_the_path_is_absolute() -> None:
    with pytest.raises(ValueError, match="must be an absolute path"):
        Settings(model_repository=("/m",), log_file="log")
