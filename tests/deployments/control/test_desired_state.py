"""What shall run follows the cluster: models that wait are placed when it has grown, what runs stays."""

import shutil
from dataclasses import replace
from pathlib import Path

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import (
    DesiredState,
    Origin,
    Trial,
    committed,
    loaded,
    reverted,
    unloaded,
    with_traffic,
)
from deployments.control.directory import UNLOADED
from deployments.control.first_state import read_desired_state
from deployments.control.gone_versions import MAX_GONE
from deployments.control.model_commands import MAX_COMMANDS, read_models
from deployments.control.model_table import ModelTable
from deployments.control.refused_loads import refused
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from repository_loader.traffic import Traffic
from tests.deployments.control.test_waiting_models import with_waiting

CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
TENSORS = 'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }\n'
ENSEMBLE = f"""platform: "ensemble" {TENSORS.removeprefix('backend: "python"')} ensemble_scheduling {{
    step {{ model_name: "step" model_version: -1 input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }} }}
}}"""
SMALL = ClusterFacts((NodeFacts(2),))
GROWN = ClusterFacts((NodeFacts(2), NodeFacts(4, 1)))


def write(root: Path, name: str, more: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1/model.py").write_text(CODE)
    (root / name / "config.pbtxt").write_text(TENSORS + more)


def test_models_that_wait_are_placed_when_the_cluster_has_what_they_need(tmp_path: Path) -> None:
    write(tmp_path, "auto", "")
    write(tmp_path, "gpu", "instance_group { kind: KIND_GPU }")
    write(tmp_path, "cpus", 'parameters { key: "eagleray.num_cpus" value { string_value: "3" } }')
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    assert before.waiting == {"gpu", "cpus"}
    assert "no GPUs are available" in (before.snapshot.models["gpu"].failure or "")
    assert before.plan.unplaced["cpus"] == "a replica of model 'cpus' needs 3 CPUs and the largest node has 2"

    after = with_waiting(options, GROWN, before)
    assert after.waiting == frozenset()
    placed = {deployment.app_name: (deployment.gpu, deployment.num_cpus) for deployment in after.plan.deployments}
    assert placed == {"auto": (None, 0.05), "gpu": (0, 0.05), "cpus": (0, 3.0)}
    assert after.snapshot.models["auto"] is before.snapshot.models["auto"]

    origins = {"auto": Origin()}
    read = read_models(options, after, "auto", None)
    moved = loaded(options, after, read, origins)
    settled = committed(options, moved, moved.trials[0])
    assert [each.gpu for each in settled.plan.deployments if each.app_name == "auto"] == [0]

    shrunk = with_waiting(options, SMALL, after)
    assert shrunk.plan == after.plan


def test_a_model_whose_traffic_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    write(tmp_path, "good", 'parameters { key: "eagleray.traffic" value { string_value: "1=50" } }')
    write(tmp_path, "bad", 'parameters { key: "eagleray.traffic" value { string_value: "most" } }')
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    desired = read_desired_state(options, SMALL)
    assert desired.waiting == {"bad"}
    assert desired.traffic == {"good": Traffic({1: 50.0})}


def test_weights_of_a_version_that_is_on_trial_hold_when_it_is_ready(tmp_path: Path) -> None:
    write(tmp_path, "m", 'parameters { key: "eagleray.traffic" value { string_value: "1=3" } }')
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    (tmp_path / "m/2").mkdir()
    (tmp_path / "m/2/model.py").write_text(CODE)
    weights = 'version_policy { all {} } parameters { key: "eagleray.traffic" value { string_value: "2=1" } }'
    (tmp_path / "m/config.pbtxt").write_text(TENSORS + weights)
    tried = loaded(options, before, read_models(options, before, "m", None), {"m": Origin()})
    assert tried.traffic == {"m": Traffic({1: 3.0})}
    assert with_traffic(tried, "m", Traffic({2: 7.0}), None).traffic == {}, "the highest that is ready has them"
    assert committed(options, tried, tried.trials[0]).traffic == {"m": Traffic({2: 1.0})}
    assert reverted(options, tried, tried.trials[0], {}, "").traffic == {"m": Traffic({1: 3.0})}


def places(desired: DesiredState) -> dict[str, list[tuple[str, str, bool]]]:
    """Return where each model is: the application, where its weights are from, and whether it leaves."""
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for deployment in desired.plan.deployments:
        for model in deployment.models:
            revision = "old" if model.package.revision.count("@") == 0 else "new"
            found.setdefault(model.name, []).append((deployment.app_name, revision, model.leaving))
    return found


def test_a_model_that_goes_elsewhere_leaves_when_it_is_ready_there(tmp_path: Path) -> None:
    packed = 'parameters { key: "eagleray.placement" value { string_value: "packed" } }'
    write(tmp_path, "one", packed)
    write(tmp_path, "other", packed)
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    (tmp_path / "one/config.pbtxt").write_text(TENSORS + packed.replace("packed", "isolated"))
    tried = loaded(options, before, read_models(options, before, "one", None), {"one": Origin()})
    stays = [("eagleray-packed", "old", False)]
    both = [("eagleray-packed", "old", True), ("one", "new", False)]
    assert places(tried) == {"one": sorted(both), "other": stays}

    other = loaded(options, tried, read_models(options, tried, "other", None), {"other": Origin()})
    assert places(other)["one"] == both, "what another command does leaves both where they are"
    assert places(committed(options, tried, tried.trials[0])) == {"one": [("one", "new", False)], "other": stays}
    assert places(reverted(options, tried, tried.trials[0], {}, "")) == {"one": stays, "other": stays}


def test_a_model_for_which_there_is_no_room_twice_goes_first(tmp_path: Path) -> None:
    cpus = 'parameters { key: "eagleray.num_cpus" value { string_value: "1.5" } }'
    placed = 'parameters { key: "eagleray.placement" value { string_value: "%s" } }'
    write(tmp_path, "large", cpus + placed % "packed")
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    (tmp_path / "large/config.pbtxt").write_text(TENSORS + cpus + placed % "isolated")
    tried = loaded(options, before, read_models(options, before, "large", None), {"large": Origin()})
    assert places(tried) == {"large": [("large", "new", False)]}


def test_what_failed_at_the_start_is_loaded_again_with_its_steps_and_nothing_else_is(tmp_path: Path) -> None:
    """What serves of a model is what there was before: a version that has failed is no part of it."""
    write(tmp_path, "step", "")
    write(tmp_path, "other", "version_policy { all {} }")
    (tmp_path / "other/2").mkdir()
    (tmp_path / "other/2/model.py").write_text(CODE)
    maps = 'input_map {{ key: "X" value: "{}" }} output_map {{ key: "Y" value: "{}" }}'
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 {maps.format(*between)} }} '
        for name, between in {"step": ("X", "M"), "other": ("M", "Y")}.items()
    )
    (tmp_path / "whole/1").mkdir(parents=True)
    (tmp_path / "whole/config.pbtxt").write_text(
        TENSORS.replace('backend: "python"', 'platform: "ensemble"') + f"ensemble_scheduling {{ {steps} }}"
    )
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    assert before.waiting == frozenset()
    failed = [("step", 1), ("other", 2)]

    def load(name: str) -> DesiredState:
        read = read_models(options, before, name, None)
        return loaded(options, before, read, {name: Origin()}, "command", name, failed)

    tried = load("step")
    assert (tried.on_trial.keys(), tried.on_trial["step"].model, tried.outcomes) == ({"step"}, None, {"command": None})
    assert tried.snapshot.models["step"].packages != before.snapshot.models["step"].packages
    after = reverted(options, tried, tried.trials[0], {"step": {1: "it does not load"}}, "error")
    assert (after.runs("step"), after.gone) == (False, {"step": {1: "it does not load"}})

    tried = load("whole")
    assert tried.on_trial.keys() == {"step", "other"}
    first, second = before.snapshot.models["other"].packages
    assert tried.snapshot.models["other"].packages[0] == first
    assert tried.snapshot.models["other"].packages[1] != second
    after = reverted(options, tried, tried.trials[0], {"other": {2: "it does not load"}}, "error")
    assert after.snapshot.models["other"].packages == (first,)


def test_ensembles_serve_on_while_a_model_below_or_above_them_cannot_be_read(tmp_path: Path) -> None:
    def configure(name: str, config: str) -> None:
        (tmp_path / name / "1").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "config.pbtxt").write_text(config)

    write(tmp_path, "step", "")
    configure("middle", ENSEMBLE)
    configure("top", ENSEMBLE.replace('"step"', '"middle"'))
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)

    def load(name: str) -> DesiredState:
        return loaded(options, before, read_models(options, before, name, None), {name: Origin()})

    def failing(desired: DesiredState) -> set[str]:
        return {name for name, model in desired.snapshot.models.items() if model.failure}

    configure("middle", ENSEMBLE.replace('key: "Y"', 'key: "Z"'))
    for name in ("middle", "top"):
        assert load(name).plan == before.plan and not load(name).trials and not failing(load(name))
    configure("middle", ENSEMBLE)
    configure("step", TENSORS + "nonesuch: 1")
    for name in ("step", "top"):
        assert load(name).plan == before.plan and not failing(load(name))
    configure("step", TENSORS.replace('"Y"', '"Z"'))
    for name in ("step", "middle"):
        assert failing(load(name)) == {"middle", "top"}
        gone = load(name).gone
        assert gone.keys() == {"middle", "top"} and "non-existing output Y" in gone["middle"][1], "and not: unloaded"
        assert not reverted(options, load(name), load(name).trials[0], {}, "").gone


def test_an_ensemble_waits_for_its_step_also_after_a_load_of_it_that_fails(tmp_path: Path) -> None:
    write(tmp_path, "step", "nonsense: 1")
    write(tmp_path, "pipe", "")
    (tmp_path / "pipe/config.pbtxt").write_text(ENSEMBLE)
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    desired = read_desired_state(options, SMALL)
    assert desired.waiting == {"step", "pipe"}
    (tmp_path / "step/config.pbtxt").write_text(TENSORS)
    for reasons in ({"step": {1: "its weights are not there"}}, {}):
        tried = loaded(options, desired, read_models(options, desired, "step", None), {"step": Origin()})
        assert tried.runs("step") and tried.runs("pipe")
        desired = reverted(options, tried, tried.trials[0], reasons, "") if reasons else tried
    desired = committed(options, desired, desired.trials[0])
    assert desired.runs("step") and desired.runs("pipe") and not desired.gone


def test_versions_that_fail_beside_those_that_serve_are_told_and_get_no_requests(tmp_path: Path) -> None:
    write(tmp_path, "m", "version_policy { all { } }")
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    shutil.copytree(tmp_path / "m/1", tmp_path / "m/2")

    def tried(desired: DesiredState) -> DesiredState:
        return loaded(options, desired, read_models(options, desired, "m", None), {"m": Origin()})

    now = tried(before)
    failed = reverted(options, now, now.trials[0], {"m": {1: "no", 2: "no weights"}}, "it failed")
    assert failed.gone == {"m": {2: "no weights"}} and failed.failed == {"m"}
    table = ModelTable()
    table.replace(failed, {})
    rows = {number: (each.state, each.reason, each.held) for number, each in table.models["m"].versions.items()}
    assert rows == {1: ("LOADING", "", False), 2: ("UNAVAILABLE", "no weights", True)}
    assert table.models["m"].taken_versions() == [1]
    shutil.rmtree(tmp_path / "m/2")
    assert not tried(failed).gone
    assert unloaded(options, failed, ["m"]).gone["m"] == {1: UNLOADED, 2: UNLOADED}


def test_a_version_that_cannot_be_read_is_told_beside_those_that_serve(tmp_path: Path) -> None:
    write(tmp_path, "m", "version_policy { all { } }")
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)

    def tried(desired: DesiredState) -> DesiredState:
        return loaded(options, desired, read_models(options, desired, "m", None), {"m": Origin()})

    (tmp_path / "m/2").mkdir()
    reason = f"unable to find '{tmp_path}/m/2/model.py' for model instance 'm_0'"
    failed = tried(before)
    assert failed.gone == {"m": {2: reason}} and not failed.trials
    table = ModelTable()
    table.replace(failed, {})
    assert table.models["m"].versions[2].held and table.models["m"].taken_versions() == [1]
    (tmp_path / "m/2").rename(tmp_path / "m/3")
    assert tried(failed).gone == {"m": {3: reason.replace("m/2", "m/3")}}
    (tmp_path / "m/config.pbtxt").write_text("broken")
    assert tried(failed).gone == {}, "it is no version's fault"


def test_models_that_could_not_be_loaded_are_not_remembered_without_end(tmp_path: Path) -> None:
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    state = read_desired_state(options, SMALL)
    state = replace(state, gone={f"m{number}": {1: "no"} for number in range(MAX_GONE)})
    state = refused(state, "last", "no")
    assert len(state.gone) == MAX_GONE and "last" in state.gone and "m0" not in state.gone and "m1" in state.gone


def test_a_long_reason_is_kept_in_short(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    before = read_desired_state(options, SMALL)
    reason = f"unexpected input '{'x' * 5_000_000}' for model 'm'"
    tried = loaded(
        options, before, read_models(options, before, "m", None), {"m": Origin()}, "command", "m", [("m", 1)]
    )
    undone = reverted(options, tried, tried.trials[0], {"m": {1: reason}}, f"load failed for model 'm': {reason}")
    kept = (refused(before, "n", reason).gone["n"][1], undone.gone["m"][1], undone.outcomes["command"])
    for text in kept:
        assert text is not None and len(text) <= 960
        assert "unexpected input 'xx" in text and text.endswith("xx' for model 'm'")


def test_whoever_waits_hears_of_a_command_however_many_end_with_it(tmp_path: Path) -> None:
    options = ControllerOptions((str(tmp_path),), LoaderOptions(), PlanSettings(), Limits())
    commands = [f"command {number}" for number in range(MAX_COMMANDS)]
    trials = tuple(Trial(command, "", {}) for command in commands)
    before = replace(
        read_desired_state(options, SMALL), trials=trials, outcomes={"earlier": "", **dict.fromkeys(commands)}
    )
    one = committed(options, before, trials[0])
    assert one.outcomes[commands[0]] == "" and one.outcomes[commands[1]] is None
    assert committed(options, one, *trials[1:]).outcomes == dict.fromkeys(commands, "")
