"""What ran under other options stays until what takes its place is ready."""

from dataclasses import replace
from pathlib import Path

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState, committed, reverted, with_room
from deployments.control.first_state import read_desired_state
from deployments.control.redeployment import beside_what_ran
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from tests.deployments.control.test_desired_state import CODE, ENSEMBLE, write
from tests.deployments.control.test_former_places import Repository, places

FACTS = ClusterFacts((NodeFacts(4),))


def options_of(root: Path, placement: str) -> ControllerOptions:
    return replace(Repository(root).options, plan=PlanSettings(placement=placement))


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


def test_where_there_is_no_room_for_both_what_ran_goes_and_comes_back_if_the_other_fails(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "isolated")
    both = deployed(tmp_path, "packed", former)
    alone = with_room(both, both.trials[0])
    assert places(alone) == {("m", 1): ["eagleray-packed#models"]} and alone.trials == both.trials
    options = options_of(tmp_path, "packed")
    assert places(committed(options, alone, alone.trials[0])) == places(alone)
    assert reverted(options, alone, alone.trials[0], {"m": {1: "no"}}, "").runs("m")


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
    (tmp_path / "m/2").mkdir()
    (tmp_path / "m/2/model.py").write_text(CODE)
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


def test_what_is_new_and_what_cannot_be_read_any_more_is_on_no_trial(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "isolated")
    write(tmp_path, "new", "")
    (tmp_path / "m/config.pbtxt").write_text("what is this")
    after = deployed(tmp_path, "packed", former)
    assert places(after) == {("new", 1): ["eagleray-packed#models"]}
    assert after.trials == () and after.snapshot.models["m"].failure


def test_where_something_was_on_trial_all_is_deployed_anew(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    write(tmp_path, "m", "")
    former = repository.read()
    repository.configure("m", "max_batch_size: 4")
    tried_before = repository.load(former, "m")
    assert tried_before.trials
    assert deployed(tmp_path, "packed", tried_before) == deployed(tmp_path, "packed")
