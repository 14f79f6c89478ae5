"""Poll mode takes a change once the model's folder has been quiet, whatever the times of its files say."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, Origin, committed, loaded, touched, unloaded
from deployments.control.directory import RENAMED, UNLOADED
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import read_models
from deployments.control.model_table import ModelTable
from deployments.control.postponed import reasons_of
from deployments.control.redeployment import beside_what_ran
from deployments.control.repository_watch import Changes, RepositoryWatch
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.namespaces import identifier
from repository_loader.snapshot import LoaderOptions

CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
SLOW_CODE = """
import os, time

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        while not os.path.exists({go!r}):
            time.sleep(0.01)
        return config

    def execute(self, requests):
        return []
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
FACTS = ClusterFacts((NodeFacts(4),))
QUIET_S = 2.0


def write(root: Path, name: str, version: int = 1) -> None:
    (root / name / str(version)).mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG)
    (root / name / str(version) / "model.py").write_text(CODE)


class Watched:
    """A repository, what runs of it, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 0.0
        self.failed: list[tuple[str, int]] = []
        self.options = ControllerOptions(
            (str(root),), LoaderOptions(), PlanSettings(), Limits(), repository_quiet_s=QUIET_S
        )
        self.desired: DesiredState = read_desired_state(self.options, FACTS)
        self.changes = Changes(self.options, lambda: self.now_s)

    def look(self, after_s: float = 0.0) -> list[str]:
        self.now_s += after_s
        return self.changes.look(self.desired, self.failed)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    write(tmp_path, "a")
    write(tmp_path, "b")
    return Watched(tmp_path)


def test_nothing_has_changed(watched: Watched) -> None:
    assert watched.look() == watched.look(after_s=100) == []
    assert not watched.changes.pending


def test_a_model_that_is_being_copied_is_not_taken_before_it_is_quiet(watched: Watched) -> None:
    write(watched.root, "copied")
    assert watched.look() == []
    for _ in range(5):
        with (watched.root / "copied/1/model.py").open("a") as file:
            file.write("#\n")
        assert watched.look(after_s=QUIET_S) == []
    assert watched.look(after_s=QUIET_S) == ["copied"]


def test_times_of_another_machine_do_not_matter(watched: Watched) -> None:
    for time_ns in (0, 1 << 62):
        os.utime(watched.root / "a/1/model.py", ns=(time_ns, time_ns))
        assert watched.look() == []
        assert watched.look(after_s=QUIET_S) == ["a"]


def test_a_folder_that_has_gone_is_a_change_and_a_repository_that_has_gone_is_none(watched: Watched) -> None:
    shutil.rmtree(watched.root / "b")
    watched.look()
    assert watched.look(after_s=QUIET_S) == ["b"]
    shutil.rmtree(watched.root)
    assert watched.look(after_s=QUIET_S) == []


def test_a_repository_that_cannot_be_read_keeps_what_runs_of_it_and_holds_no_other_up(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "a")
    write(second, "b")
    options = ControllerOptions(
        (str(first), str(second)), LoaderOptions(), PlanSettings(), Limits(), repository_quiet_s=0
    )
    desired, changes = read_desired_state(options, FACTS), Changes(options)
    second.rename(tmp_path / "aside")
    for name in ("added", "b"):  # one of a name that the other has
        write(first, name)
    assert changes.look(desired) == ["added"]
    (tmp_path / "aside").rename(second)
    shutil.rmtree(first / "b")
    shutil.rmtree(first / "a")
    assert sorted(changes.look(desired)) == ["a", "added"]
    assert changes.is_gone("a")


def test_a_change_that_was_taken_is_none_any_more(watched: Watched) -> None:
    write(watched.root, "a", version=2)
    watched.look()
    (name,) = watched.look(after_s=QUIET_S)
    read = read_models(watched.options, watched.desired, name, None)
    changed = loaded(watched.options, watched.desired, read, {name: Origin()})
    (trial,) = changed.trials
    assert {(model.name, model.version) for each in changed.plan.deployments for model in each.models} == {
        ("a", 1),
        ("a", 2),
        ("b", 1),
    }
    watched.desired = committed(watched.options, changed, trial)
    assert watched.look() == []
    placed = {(model.name, model.version) for each in watched.desired.plan.deployments for model in each.models}
    assert placed == {("a", 2), ("b", 1)}


def test_what_was_tried_in_vain_is_tried_later_and_later_unless_it_changes(watched: Watched) -> None:
    watched.options = replace(watched.options, repository_poll_s=15.0)
    watched.changes = Changes(watched.options, lambda: watched.now_s)
    write(watched.root, "broken")
    pauses_s = []
    for _ in range(8):
        last_s = watched.now_s
        while watched.look(after_s=1.0) != ["broken"]:
            assert watched.now_s < last_s + 1000
        pauses_s.append(watched.now_s - last_s)
        watched.changes.tried("broken", watched.changes.looks_of("broken"))
        watched.changes.taken(["broken"])
        assert watched.look() == [] and not watched.changes.pending
    assert pauses_s == [pytest.approx(pause_s, abs=3) for pause_s in (2, 32, 62, 122, 242, 482, 602, 602)]
    with (watched.root / "broken/1/model.py").open("a") as file:
        file.write("#\n")
    assert watched.look() == []
    assert watched.look(after_s=QUIET_S) == ["broken"]


def test_what_had_failed_beside_what_runs_and_is_there_no_more_is_a_change(watched: Watched) -> None:
    watched.desired = replace(watched.desired, gone={"a": {2: "no weights"}, "b": {2: UNLOADED}})
    assert watched.look() == []
    assert watched.look(after_s=QUIET_S) == ["a"]
    read = read_models(watched.options, watched.desired, "a", None)
    watched.desired = loaded(watched.options, watched.desired, read, {"a": Origin()})
    assert not watched.desired.trials and watched.look() == watched.look(after_s=QUIET_S) == []


def test_what_could_not_be_loaded_at_the_start_is_tried_again_like_what_was_tried_later(tmp_path: Path) -> None:
    write(tmp_path, "fails")
    write(tmp_path, "unread")
    (tmp_path / "unread/config.pbtxt").write_text(CONFIG + "max_batch_size: -3")
    watched = Watched(tmp_path)
    watched.failed = [("fails", 1)]
    assert watched.desired.snapshot.models["unread"].failure
    pauses_s = []
    for _ in range(3):
        last_s = watched.now_s
        while sorted(watched.look(after_s=1.0)) != ["fails", "unread"]:
            assert watched.now_s < last_s + 1000
        pauses_s.append(watched.now_s - last_s)
        for name in ("fails", "unread"):
            watched.changes.tried(name, watched.changes.looks_of(name))
        watched.changes.taken(["fails", "unread"])
    assert pauses_s == [pytest.approx(pause_s, abs=3) for pause_s in (32, 62, 122)]
    watched.failed = []
    assert "fails" not in watched.look(after_s=1000) + watched.look(after_s=QUIET_S)


def test_what_a_deployment_brought_in_vain_is_loaded_once_it_is_as_what_runs(watched: Watched) -> None:
    """Its files are then those that run, which tells the watch of no change."""
    config = watched.root / "a/config.pbtxt"
    before = config.stat()
    former = watched.desired
    config.write_text("what is this")
    watched.desired = beside_what_ran(watched.options, former, read_desired_state(watched.options, FACTS))
    assert reasons_of(watched.desired.postponed).keys() == {"a"} and watched.look() == []
    config.write_text(CONFIG)
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert any(watched.look(after_s=1.0) == ["a"] for _ in range(100))
    read = read_models(watched.options, watched.desired, "a", None)
    after = loaded(watched.options, watched.desired, read, {"a": Origin()})
    assert not after.postponed and after.plan == former.plan and after.trials == ()


def test_what_is_postponed_together_is_not_parted_by_the_watch(tmp_path: Path) -> None:
    """The step of an ensemble that cannot be read waits with it; what only the ensemble needs is not gone."""
    write(tmp_path, "step")
    write(tmp_path, "needed")
    steps, later = [("step", "X", "Z"), ("needed", "Z", "Y")], [("step", "X", "Z"), ("new", "Z", "Y")]
    step = 'step { model_name: "%s" model_version: -1 input_map { key: "X" value: "%s" } output_map { key: "Y" value: "%s" } }'
    scheduling, mended = (" ".join(step % each for each in some) for some in (steps, later))
    head = CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    (tmp_path / "ensemble/1").mkdir(parents=True)
    (tmp_path / "ensemble/config.pbtxt").write_text(f"{head} ensemble_scheduling {{ {scheduling} }}")
    watched = Watched(tmp_path)
    former = watched.desired
    (tmp_path / "ensemble/config.pbtxt").write_text("what is this")
    write(tmp_path, "step", 2)
    shutil.rmtree(tmp_path / "needed")
    watched.desired = beside_what_ran(watched.options, former, read_desired_state(watched.options, FACTS))
    assert watched.desired.plan == former.plan
    assert reasons_of(watched.desired.postponed).keys() == {"ensemble", "step"}
    assert {name for _ in range(60) for name in watched.look(after_s=1.0)} == {"ensemble"}  # which cannot be read

    options = replace(watched.options, repository_poll_s=0.02, repository_quiet_s=0.02)

    async def scenario() -> DesiredState:
        no_store: Any = None
        state = Taking(no_store, lambda desired: None)
        await state.change(watched.desired)
        watch = asyncio.create_task(RepositoryWatch(options, state, ModelTable()).run())
        with (tmp_path / "step/2/model.py").open("a") as file:
            file.write("#")  # of what waits for the ensemble
        write(tmp_path, "other")
        async with asyncio.timeout(10):
            seen = await state.until(lambda desired: desired if desired.runs("other") else None)
            assert reasons_of(seen.postponed).keys() == {"ensemble", "step"} and len(seen.trials) == 1
            write(tmp_path, "new")
            (tmp_path / "ensemble/config.pbtxt").write_text(f"{head} ensemble_scheduling {{ {mended} }}")
            seen = await state.until(lambda desired: None if desired.postponed else desired)
        watch.cancel()
        return seen

    after = asyncio.run(scenario())
    changed = [set(trial.before) for trial in after.trials][1:]  # `new` may have been seen alone
    assert changed[-1] - {"new"} == {"ensemble", "step"} and set().union(*changed) == {"ensemble", "new", "step"}
    assert after.runs("ensemble") and after.runs("new")


class Taking(CurrentState):
    """Stores no state."""

    async def change(self, desired: DesiredState) -> None:
        self._take(desired)


class Stubborn(CurrentState):
    """Takes no state without a model `a`, and stores none."""

    async def change(self, desired: DesiredState) -> None:
        if "a" not in desired.snapshot.models:
            raise OSError("no")
        self._take(desired)


def test_a_model_whose_change_fails_holds_no_other_up(watched: Watched) -> None:
    options = replace(watched.options, repository_poll_s=0.02, repository_quiet_s=0.02)

    async def scenario() -> None:
        no_store: Any = None
        state = Stubborn(no_store, lambda desired: None)
        await state.change(watched.desired)
        shutil.rmtree(watched.root / "a")
        shutil.rmtree(watched.root / "b")
        watch = asyncio.create_task(RepositoryWatch(options, state, ModelTable()).run())
        async with asyncio.timeout(10):
            desired = await state.until(lambda desired: None if desired.runs("b") else desired)
        watch.cancel()
        assert desired.runs("a")

    asyncio.run(scenario())


def test_a_model_that_takes_long_to_say_what_it_is_holds_no_other_up(watched: Watched, tmp_path: Path) -> None:
    options = replace(watched.options, repository_poll_s=0.02, repository_quiet_s=0.02)
    go = tmp_path.with_suffix(".go")

    async def scenario() -> None:
        no_store: Any = None
        state = Taking(no_store, lambda desired: None)
        await state.change(watched.desired)
        write(watched.root, "a-slow-one")
        (watched.root / "a-slow-one/1/model.py").write_text(SLOW_CODE.format(go=str(go)))
        write(watched.root, "c")
        watch = asyncio.create_task(RepositoryWatch(options, state, ModelTable(), patience_s=0.01).run())
        try:
            async with asyncio.timeout(20):
                desired = await state.until(lambda desired: desired if desired.runs("c") else None)
                assert not desired.runs("a-slow-one")
                go.touch()
                await state.until(lambda desired: desired.runs("a-slow-one") or None)
        finally:
            go.touch()
            watch.cancel()

    asyncio.run(scenario())


def test_a_name_that_a_second_repository_has_now_too_is_one_of_two_and_ensembles_follow(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, "m")
    (second / "uses/1").mkdir(parents=True)
    tensors = CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    (second / "uses/config.pbtxt").write_text(
        f'{tensors} ensemble_scheduling {{ step {{ model_name: "m" model_version: -1 {maps} }} }}'
    )
    options = ControllerOptions(
        (str(first), str(second)), LoaderOptions(namespacing=True), PlanSettings(), Limits(), repository_quiet_s=0
    )
    desired = read_desired_state(options, FACTS)
    changes = Changes(options)

    def follow(desired: DesiredState) -> DesiredState:
        """Take what has changed as `RepositoryWatch` does."""
        for name in changes.look(desired):
            if changes.is_gone(name):
                desired = unloaded(options, desired, [name])
                continue
            read = read_models(options, desired, name, None)
            if touched(options, desired, read).isdisjoint(desired.on_trial):
                desired = loaded(options, desired, read, {name: Origin()})
        for trial in desired.trials:
            desired = committed(options, desired, trial)
        return desired

    def step(desired: DesiredState) -> str:
        return str(desired.snapshot.models["uses"].packages[0].config.ensemble_scheduling.step[0].model_name)

    assert (set(desired.snapshot.models), step(desired)) == ({"m", "uses"}, "m")
    write(second, "m")
    desired = follow(follow(desired))
    both = {identifier("m", str(repository)) for repository in (first, second)}
    assert (set(desired.snapshot.models), step(desired)) == ({*both, "uses"}, identifier("m", str(second)))
    assert changes.look(desired) == []
    shutil.rmtree(second / "m")
    desired = follow(follow(desired))
    assert (set(desired.snapshot.models), step(desired)) == ({"m", "uses"}, "m")
    assert desired.gone == {name: {1: RENAMED} for name in both}
    assert changes.look(desired) == []


def test_a_watched_repository_of_300_models_costs_a_hundredth_of_a_core_at_most(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path, f"model{number}")
    watched = Watched(tmp_path)
    before = psutil.Process().cpu_times()
    for _ in range(5):
        assert watched.look() == []
    after = psutil.Process().cpu_times()
    seconds = (after.user + after.system - before.user - before.system) / 5
    print(f"one look at 300 models: {1000 * seconds:.1f} ms, every {watched.options.repository_poll_s:g} s")
    assert seconds / watched.options.repository_poll_s <= 0.01
