"""`serve --help` under headings."""

import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from click import NoSuchOption
from click.testing import CliRunner

from app.cli.main import main
from tests.serving import EAGLERAY, run


def test_flags_stand_under_headings() -> None:
    text = run(EAGLERAY, "serve", "--help").stdout
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert headings[0] == "Models"
    assert {"Access and TLS", "HTTP", "gRPC", "Metrics, logs and traces", "Ray", "Server"} <= set(headings)
    sections = dict(zip(headings, re.split(r"^\w.*:$", text, flags=re.MULTILINE)[1:], strict=True))
    for flag, heading in (
        ("--model-repository", "Models"),
        ("--http-port", "HTTP"),
        ("--http-server-cert", "Access and TLS"),
        ("--api-key-file", "Access and TLS"),
        ("--grpc-max-message-size", "gRPC"),
        ("--log-verbose", "Metrics, logs and traces"),
        ("--num-gpus", "Ray"),
    ):
        assert flag in sections[heading], flag


@pytest.mark.parametrize("command", [[], ["repository"]])
def test_each_command_is_listed_with_a_whole_sentence(command: list[str]) -> None:
    text = CliRunner().invoke(main, [*command, "--help"]).output
    listed = re.split(r"^  \w\S*  ", text.partition("Commands:\n")[2], flags=re.MULTILINE)[1:]
    assert len(listed) >= 3
    assert not [each for each in listed if "..." in each or not each.strip().endswith(".")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--model-repository=/m"], "--model-repository is a flag of `eagleray serve`"),
        (["serve", "/m"], "'/m' stands without a flag; repositories are given by --model-repository"),
        (["--no-such-flag"], NoSuchOption("--no-such-flag").format_message()),
    ],
    ids=" ".join,
)
def test_a_line_that_is_almost_one_of_serve_is_told_what_lacks(line: list[str], told: str) -> None:
    done = CliRunner().invoke(main, line)
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {told}")


def test_the_version_is_that_of_the_package() -> None:
    done = run(EAGLERAY, "--version")
    assert (done.returncode, done.stdout) == (0, f"eagleray, version {version('eagleray')}\n")


@pytest.mark.parametrize("separator", [":", ","])
def test_several_repositories_in_one_flag_are_told_to_be_given_one_by_one(separator: str, tmp_path: Path) -> None:
    both = separator.join([str(tmp_path), "/nowhere"])
    done = CliRunner().invoke(main, ["plan", "--model-repository", both])
    told = f"the model repository {both} is not a folder; give --model-repository once for each of several"
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {told}")


@pytest.mark.parametrize("written", ["{0} {0}", "{0}:http://127.0.0.1:1/models.zip", "{0},{0}"])
def test_several_repositories_in_the_variable_are_told_what_stands_between_them(written: str, tmp_path: Path) -> None:
    several = written.format(tmp_path)
    done = CliRunner(env={"EAGLERAY_MODEL_REPOSITORY": several}).invoke(main, ["plan"])
    told = "is not a folder; put ':' between several folders, or spaces where one is an address"
    assert (done.exit_code, done.output.rstrip().endswith(told)) == (2, True), done.output


def test_a_repository_whose_path_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"models\xff")
    folder.mkdir()
    done = CliRunner().invoke(main, ["serve", "--model-repository", str(folder)])
    told = f"the path of the model repository {tmp_path}/models\ufffd is not UTF-8 text, as Ray's are"
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {told}")


@pytest.mark.parametrize("command", ["plan", "validate"])
@pytest.mark.parametrize(
    "line",
    [
        "--disable-auto-complete-config REPOSITORY",
        "--disable-auto-complete-config true REPOSITORY",
        "--json --disable-auto-complete-config -- REPOSITORY",
        "REPOSITORY --disable-auto-complete-config",
    ],
)
def test_a_setting_that_is_true_or_false_needs_no_value(command: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    done = CliRunner().invoke(main, [command, *line.replace("REPOSITORY", str(tmp_path)).split()])
    assert done.exit_code == 2 and "failed to open text file for read" in done.output  # as it is not completed


def test_what_metrics_config_refuses_names_the_flag_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["plan", str(tmp_path), "--metrics-config", "foo"])
    assert done.output.splitlines()[-1] == "Error: --metrics-config: has the form <setting>=<value>, got 'foo'"
