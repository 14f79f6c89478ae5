"""What ran under other options stays until what takes its place is ready."""

import shutil
from dataclasses import replace
from pathlib import Path

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState, committed, reverted
from deployments.control.directory import LOADING
from deployments.control.first_state import read_desired_state
from deployments.control.model_table import ModelTable
from deployments.control.redeployment import beside_what_ran
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from tests.deployments.control.test_desired_state import CODE, ENSEMBLE, TENSORS, write
from tests.deployments.control.test_former_places import CPUS, PLACED, Repository, places

FACTS = ClusterFacts((NodeFacts(4),))


def options_of(root: Path, placement: str) -> ControllerOptions:
    return replace(Repository(root).options, plan=PlanSettings(placement=placement))


def add_version(root: Path, name: str) -> None:
    (root / name / "2").mkdir()
    (root / name / "2/model.py").write_text(CODE)


def deployed(root: Path, placement: str, former: DesiredState | None = None) -> DesiredState:
    options = options_of(root, placement)
    fresh = read_desired_state(options, FACTS)
    return fresh if former is None else beside_what_ran(options, former, fresh)


def tried(desired: DesiredState) -> list[set[str]]:
    return sorted((set(trial.before) for trial in desired.trials), key=sorted)


def test_what_goes_elsewhere_stays_where_it_was_until_it_is_ready(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    write(tmp_path, "n", "")
    former = deployed(tmp_path, "isolated")
    both = deployed(tmp_path, "packed", former)
    packed, isolated = "eagleray-packed#models", {("m", 1): "-m#v1", ("n", 1): "-n#v1"}
    assert places(both) == {version: [packed, isolated[version]] for version in isolated}
    assert tried(both) == [{"m"}, {"n"}]
    options = options_of(tmp_path, "packed")
    ready = committed(options, both, both.trials[0])
    assert sorted(places(ready).values()) == [[packed], [packed, "-n#v1"]]
    failed = reverted(options, ready, ready.trials[0], {}, "it failed")
    assert sorted(places(failed).values()) == [[packed], ["n#v1"]]
    assert failed.trials == ()


def test_a_trial_that_ends_well_leaves_only_what_was_deployed(tmp_path: Path) -> None:
    """As it does, too, where there is no room for both."""
    write(tmp_path, "moved", "")
    write(tmp_path, "next", "")
    former = deployed(tmp_path, "isolated")
    (tmp_path / "next/config.pbtxt").write_text(TENSORS + PLACED % "isolated")
    add_version(tmp_path, "next")
    after = deployed(tmp_path, "packed", former)
    for trial in after.trials:
        after = committed(options_of(tmp_path, "packed"), after, trial)
    assert places(after) == {("moved", 1): ["eagleray-packed#models"], ("next", 2): ["next#v2"]}


def test_what_has_lost_its_place_is_not_ready_until_it_is_in_the_other(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    both, table = deployed(tmp_path, "packed", deployed(tmp_path, "isolated")), ModelTable()
    table.replace(both, {})
    (trial,) = both.trials
    entry = table.models["m"].versions[1]
    entry.loaded("", 0.0)
    assert entry.placement == "isolated"
    table.lose_places(trial.before)
    table.replace(committed(options_of(tmp_path, "packed"), both, trial), {})
    entry = table.models["m"].versions[1]
    assert (entry.state, entry.placement) == (LOADING, "packed")


def test_versions_that_go_take_no_place_from_others(tmp_path: Path) -> None:
    """They go at once then, as without anything that ran."""
    write(tmp_path, "large", CPUS % "3")
    former = deployed(tmp_path, "isolated")
    add_version(tmp_path, "large")
    after = deployed(tmp_path, "isolated", former)
    assert places(after) == {("large", 2): ["large#v2"]} and tried(after) == [{"large"}]


def test_what_runs_as_it_did_is_not_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "packed")
    (package,) = former.snapshot.models["m"].packages
    reloaded = replace(package, revision=f"{package.revision}@1")
    models = {"m": replace(former.snapshot.models["m"], packages=(reloaded,))}
    former = replace(former, snapshot=replace(former.snapshot, models=models))
    again = deployed(tmp_path, "packed", former)
    assert again.snapshot.models["m"].packages == (reloaded,)
    assert again.trials == () and places(again) == places(former)


def test_a_version_stays_until_the_next_is_ready(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "isolated")
    add_version(tmp_path, "m")
    both = deployed(tmp_path, "isolated", former)
    assert places(both) == {("m", 1): ["m#v1"], ("m", 2): ["m#v2"]}
    (trial,) = both.trials
    options = options_of(tmp_path, "isolated")
    assert places(committed(options, both, trial)) == {("m", 2): ["m#v2"]}
    assert places(reverted(options, both, trial, {"m": {2: "no"}}, "")) == {("m", 1): ["m#v1"]}


def test_what_an_ensemble_links_goes_together(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    write(tmp_path, "alone", "")
    (tmp_path / "ensemble/1").mkdir(parents=True)
    (tmp_path / "ensemble/config.pbtxt").write_text(ENSEMBLE)
    both = deployed(tmp_path, "packed", deployed(tmp_path, "isolated"))
    assert tried(both) == [{"alone"}, {"ensemble", "step"}]


def test_what_an_ensemble_that_stays_links_goes_together(tmp_path: Path) -> None:
    for name in ("step", "other"):
        write(tmp_path, name, "")
    (tmp_path / "ensemble/1").mkdir(parents=True)
    step = 'step { model_name: "%s" model_version: -1 input_map { key: "X" value: "%s" } output_map { key: "Y" value: "%s" } }'
    steps = step % ("step", "X", "between") + step % ("other", "between", "Y")
    head = ENSEMBLE.partition("ensemble_scheduling")[0]
    (tmp_path / "ensemble/config.pbtxt").write_text(f"{head} ensemble_scheduling {{ {steps} }}")
    former = deployed(tmp_path, "isolated")
    assert former.runs("ensemble"), former.snapshot.models["ensemble"].failure
    for name in ("step", "other"):
        add_version(tmp_path, name)
    assert tried(deployed(tmp_path, "isolated", former)) == [{"other", "step"}]


def test_what_is_new_and_what_cannot_be_read_any_more_is_on_no_trial(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "isolated")
    write(tmp_path, "new", "")
    (tmp_path / "m/config.pbtxt").write_text("what is this")
    after = deployed(tmp_path, "packed", former)
    assert places(after) == {("new", 1): ["eagleray-packed#models"]}
    assert after.trials == () and after.snapshot.models["m"].failure


def test_what_was_on_trial_counts_as_it_was_before(tmp_path: Path) -> None:
    """As where one deployment comes shortly after another."""
    write(tmp_path, "m", "")
    write(tmp_path, "n", "")
    first = deployed(tmp_path, "isolated")
    second = deployed(tmp_path, "packed", first)
    (tmp_path / "n/config.pbtxt").write_text(TENSORS + "max_batch_size: 4")
    third = deployed(tmp_path, "embedded", second)
    assert places(third) == {("m", 1): ["-m#v1", "ingress"], ("n", 1): ["-n#v1", "ingress"]}
    assert [trial.before["m"].model for trial in third.trials if "m" in trial.before] == [first.snapshot.models["m"]]
    back = deployed(tmp_path, "isolated", third)
    assert places(back) == places(first) and tried(back) == [{"n"}]


def test_a_version_that_was_on_trial_does_not_run_yet(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    first = deployed(tmp_path, "isolated")
    add_version(tmp_path, "m")
    second = deployed(tmp_path, "isolated", first)
    third = deployed(tmp_path, "isolated", second)
    assert places(third) == {("m", 1): ["m#v1"], ("m", 2): ["m#v2"]}
    assert tried(third) == [{"m"}] and third.trials[0].before["m"].model == first.snapshot.models["m"]


def test_a_version_that_was_on_trial_goes_with_the_deployment_that_brought_it(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    first = deployed(tmp_path, "isolated")
    add_version(tmp_path, "m")
    second = deployed(tmp_path, "isolated", first)
    shutil.rmtree(tmp_path / "m/2")
    back = deployed(tmp_path, "isolated", second)
    assert places(back) == places(first) and back.trials == ()
