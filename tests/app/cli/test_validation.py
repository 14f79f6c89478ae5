"""`eagleray validate --load`, and that the log of a server says what validate says."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import main
from app.cli.no_model import NO_MODEL
from app.cli.validation import Validation
from deployments.control.controller_options import ControllerOptions
from deployments.control.first_state import read_desired_state
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.repositories import BROKEN, EXAMPLES, write_broken_models

FACTS = ClusterFacts((NodeFacts(8.0),))


def validation_of(root: Path) -> Validation:
    return Validation.of([str(root)], LoaderOptions(), PlanSettings(), FACTS)


def test_load_finds_what_only_loading_can_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_broken_models(tmp_path)
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    validation = validation_of(tmp_path)
    before = set(validation.failures)
    validation.load()
    assert set(validation.failures) - before == {"broken_dependent", "broken_import", "broken_initialize"}
    for name, part in BROKEN.items():
        assert part in validation.failures[name]
    assert validation.print(as_json=False) == 2
    printed = capsys.readouterr().out
    assert "digits: ok, versions 1, 2" in printed
    reason = "RuntimeError: the weights are not where they were"
    assert f"{tmp_path}/broken_initialize/config.pbtxt:1:1: error: {reason}\n" in printed
    assert f"broken_initialize: FAULTY: {reason}\n" in printed


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("command", ["plan", "validate"])
def test_a_model_to_load_that_no_repository_has_is_told(command: str, as_json: bool, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    flags = ["--model-control-mode", "explicit", "--load-model", "digits", *["--json"][: 1 if as_json else 0]]
    done = CliRunner().invoke(main, [command, str(tmp_path), *flags])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, [command, str(tmp_path), *flags, "--load-model", "nosuch"])
    told = "failed to load 'nosuch', failed to poll from model repository"
    assert (done.exit_code, done.output.count(told)) == (2, 1), done.output


def test_a_model_that_no_node_can_hold_is_faulty(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    with (tmp_path / "digits/config.pbtxt").open("a") as file:
        file.write('parameters { key: "eagleray.num_cpus" value { string_value: "64" } }\n')
    assert "64 CPUs" in validation_of(tmp_path).failures["digits"]


def test_a_machine_has_the_processors_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Ray has that `eagleray serve` would start."""
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    with (tmp_path / "digits/config.pbtxt").open("a") as file:
        file.write('parameters { key: "eagleray.num_cpus" value { string_value: "2" } }\n')
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for allowed, code in (({0}, 2), ({0, 1, 2, 3}, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, allowed=allowed: allowed)
        for command in ("plan", "validate"):
            done = CliRunner().invoke(main, [command, str(tmp_path)])
            assert done.exit_code == code, done.output


def test_the_log_of_a_server_has_the_findings_of_validate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_broken_models(tmp_path)
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    with (tmp_path / "digits/config.pbtxt").open("a") as file:
        file.write("optimization { cuda { graphs: true } eager_batching: true }\n")
    findings = {str(finding): finding.severity for finding in validation_of(tmp_path).findings}
    assert sum("digits" in text and "has no effect" in text for text in findings) == 2
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    read_desired_state(options, FACTS)
    logged = {record.getMessage(): record.levelname.lower() for record in caplog.records}
    assert findings == {text: level for text, level in logged.items() if text in findings}
    assert [text for text, level in logged.items() if level == "warning" and text not in findings] == []


def test_what_models_are_called_and_print_steers_no_terminal(tmp_path: Path) -> None:
    name = "mask:fire:[red]"
    code = {
        name: 'raise RuntimeError("\\x1b]0;owned\\x07 by me")',
        "dies": "import os\nclass TritonPythonModel:\n    def initialize(self, args):\n"
        '        print("\\x1b[2Jcleared", flush=True)\n        os._exit(3)\n'
        "    def execute(self, requests):\n        pass\n",
    }
    for model, text in code.items():
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "config.pbtxt").write_text('backend: "python"\n')
        (tmp_path / model / "1" / "model.py").write_text(text)
    done = CliRunner().invoke(main, ["validate", "--load", str(tmp_path)])
    assert f"{name}: FAULTY: " in done.output and "owned" in done.output
    assert "    \\u001b[2Jcleared\n" in done.output
    assert not set("\x1b\x07") & set(done.output)
    planned = CliRunner().invoke(main, ["plan", str(tmp_path)])
    assert name in planned.output


@pytest.mark.parametrize("columns", [None, "40"])
def test_plan_says_every_model_and_its_reason_whole_and_in_a_line(
    columns: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a_name_that_says_what_the_model_is_for_and_who_made_it_when_and_of_which_data_and_still_has_a_version_v17"
    for model in (name, "digits"):
        shutil.copytree(EXAMPLES / "digits", tmp_path / model)
    config = tmp_path / name / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "digits"', ""))
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    lines = CliRunner().invoke(main, ["plan", str(tmp_path)]).output.splitlines()
    assert lines == [
        "eagleray-packed models: placement packed, replicas 1, CPUs 0.05, device CPU, memory 256 MiB",
        *(
            f"  {model} {version}: instances 1; small and on the CPU"
            for model in (name, "digits")
            for version in (1, 2)
        ),
    ]


def test_a_repository_without_models_is_said_to_have_none(tmp_path: Path) -> None:
    for command in ("validate", "plan"):
        done = CliRunner().invoke(main, [command, str(tmp_path)])
        assert (done.exit_code, done.output) == (0, f"{NO_MODEL}\n")
