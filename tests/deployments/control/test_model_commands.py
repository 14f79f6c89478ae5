"""Who may have models loaded, whoever asks."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.control import model_commands
from deployments.control.controller_options import ControllerOptions, ControlMode
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import committed, reverted
from deployments.control.directory import LOADING, READY, RENAMED
from deployments.control.first_state import read_desired_state
from deployments.control.growth_request import wanted
from deployments.control.model_commands import ModelCommands
from deployments.control.model_table import ModelTable
from deployments.control.state_store import StateStore
from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.namespaces import identifier
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_state_store import Table
from tests.deployments.control.test_waiting_models import WAITS_TO_BE_READ, with_waiting
from tests.repository_loader.repositories import TENSORS, python_model, write

TENSOR = '[{"name": "%s", "data_type": "TYPE_FP32", "dims": [4]}]'
CONFIG = f"""{{
    "backend": "python", "input": {TENSOR % "X"}, "output": {TENSOR % "Y"},
    "parameters": {{"mine": {{"string_value": "1"}}}}
}}"""
STEPS = """platform: "ensemble" ensemble_scheduling {
    step { model_name: "step" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "M" } }
    step { model_name: "slow" model_version: -1 input_map { key: "X" value: "M" } output_map { key: "Y" value: "Y" } }
}"""

OTHER_STEPS = STEPS.replace("slow", "other")


async def started(options: ControllerOptions) -> tuple[CurrentState, ModelCommands]:
    """Return the state of a controller that has just started on a node of four cores, and the commands that change it."""
    state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
    await state.change(await asyncio.to_thread(read_desired_state, options, ClusterFacts((NodeFacts(4),))))
    no_files: Any = None  # which no command here brings
    return state, ModelCommands(options, state, no_files, ModelTable())


async def commit(state: CurrentState, options: ControllerOptions) -> None:
    """Have the next load succeed."""
    desired = await state.until(lambda desired: desired if desired.trials else None)
    await state.change(committed(options, desired, desired.trials[0]))


@pytest.mark.parametrize("mode", ["none", "poll"])
@pytest.mark.parametrize(
    "command",
    [lambda commands: commands.load("id", "m", None, {}), lambda commands: commands.unload("id", "m", False)],
    ids=["load", "unload"],
)
def test_models_are_loaded_in_explicit_mode_only(
    mode: ControlMode, command: Callable[[ModelCommands], Awaitable[None]]
) -> None:
    options = ControllerOptions((), LoaderOptions(), PlanSettings(), Limits(), control_mode=mode)
    nothing: Any = None  # which a refused command does not touch
    with pytest.raises(Unavailable, match=r"^explicit model load / unload is not allowed if polling is enabled$"):
        asyncio.run(command(ModelCommands(options, nothing, nothing, nothing)))  # type: ignore[arg-type]


def test_load_and_unload_of_a_name_are_for_all_that_have_it(tmp_path: Path) -> None:
    repositories = tuple(write(tmp_path / folder, python_model("m")) for folder in ("a", "b"))
    both = {identifier("m", repository) for repository in repositories}
    options = ControllerOptions(
        repositories, LoaderOptions(namespacing=True), PlanSettings(), Limits(), control_mode="explicit"
    )

    async def scenario() -> None:
        state, commands = await started(options)
        loading = asyncio.create_task(commands.load("1", "m", None, {}))
        desired = await state.until(lambda desired: desired if desired.trials else None)
        assert {name for name in both if desired.runs(name)} == both
        await state.change(committed(options, desired, desired.trials[0]))
        await loading
        await commands.unload("2", "m", False)
        desired = await state.until(lambda desired: desired)
        assert (set(desired.snapshot.models), set(desired.gone)) == (set(), both)
        write(tmp_path / "b", {"m/config.pbtxt": "foo: 1"})
        with pytest.raises(InvalidArgument, match=f"^load failed for model '{identifier('m', repositories[1])}': "):
            await commands.load("3", "m", None, {})

    asyncio.run(scenario())


def test_a_load_notes_which_new_version_cannot_be_read(tmp_path: Path) -> None:
    repository = write(tmp_path, python_model("m"))
    options = ControllerOptions((repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")

    async def scenario() -> None:
        state, commands = await started(options)
        loading = asyncio.create_task(commands.load("1", "m", None, {}))
        await commit(state, options)
        await loading
        write(tmp_path, {"m/2": None})
        with pytest.raises(InvalidArgument, match=f"^load failed for model 'm': unable to find '{repository}/m/2/"):
            await commands.load("2", "m", None, {})
        desired = await state.until(lambda desired: desired)
        assert desired.runs("m") and desired.gone["m"].keys() == {2}

    asyncio.run(scenario())


def test_who_waits_for_a_model_that_loads_for_ever_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_commands, "_TIMEOUT_S", 0.5)
    repository = write(tmp_path, python_model("m"))
    options = ControllerOptions((repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")

    async def scenario() -> None:
        state, commands = await started(options)
        for command in (commands.load("1", "m", None, {}), commands.unload("2", "m", False)):
            with pytest.raises(Unavailable, match=r"^model 'm' is not loaded or unloaded after 0\.5 s; what has begun"):
                await command
        assert state.desired is not None and state.desired.on_trial.keys() == {"m"}
        await commit(state, options)
        await commands.load("1", "m", None, {})  # as an ingress repeats it

    asyncio.run(scenario())


def test_what_is_wrong_with_a_model_that_a_client_loads_stands_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = write(tmp_path, python_model("m"))
    options = ControllerOptions((repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")
    write(tmp_path, {"m/config.pbtxt": 'backend: "python"\nfoo: 1\n'})

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, ClusterFacts((NodeFacts(4),))))
        no_files: Any = None  # which no command here brings
        with pytest.raises(InvalidArgument, match=r"^load failed for model 'm': "):
            await ModelCommands(options, state, no_files, ModelTable()).load("1", "m", None, {})

    asyncio.run(scenario())
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any(error.startswith(f"{repository}/m/config.pbtxt:2:") for error in errors), errors
    assert any(error.startswith("failed to load 'm': ") for error in errors), errors


def test_without_namespaces_nothing_else_is_loaded_or_unloaded_than_what_is_named(tmp_path: Path) -> None:
    dated = "m@prod-20240115"
    repository = write(tmp_path, python_model(dated))
    options = ControllerOptions(
        (repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=(dated,)
    )

    async def scenario() -> None:
        state, commands = await started(options)
        await commands.unload("1", "m", False)
        with pytest.raises(Internal, match=r"^failed to load 'm', failed to poll from model repository$"):
            await commands.load("2", "m", None, {})
        with pytest.raises(InvalidArgument, match=r"^failed to load 'm', Invalid config override: "):
            await commands.load("3", "m", '"parameters": {}', {})
        assert state.desired is not None and state.desired.runs(dated)

    asyncio.run(scenario())


def test_a_model_goes_on_when_another_repository_gets_its_name(tmp_path: Path) -> None:
    """It is called otherwise then; so do the ensembles that have it, whichever of them is loaded again."""
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    step = f'step {{ model_name: "step" model_version: -1 {maps} }}'
    ensemble = f'platform: "ensemble" max_batch_size: 0 {TENSORS} ensemble_scheduling {{ {step} }}'
    repositories = tuple(
        write(tmp_path / folder, {f"of_{folder}/config.pbtxt": ensemble, f"of_{folder}/1": None}) for folder in "ab"
    )
    write(tmp_path / "b", python_model("step"))
    steps = {identifier("step", repository) for repository in repositories}
    options = ControllerOptions(
        repositories, LoaderOptions(namespacing=True), PlanSettings(), Limits(), control_mode="explicit"
    )

    async def scenario() -> None:
        state, commands = await started(options)

        async def load(command: str, name: str) -> set[str]:
            loading = asyncio.create_task(commands.load(command, name, None, {}))
            ready = asyncio.create_task(commit(state, options))
            await asyncio.wait((loading, ready), return_when=asyncio.FIRST_COMPLETED)
            await loading
            desired = await state.until(lambda desired: desired)
            return {each for each in desired.snapshot.models if desired.runs(each)}

        assert await load("1", "of_a") == {"of_a", "step"}
        assert await load("2", "of_b") == {"of_a", "of_b", "step"}
        write(tmp_path / "a", python_model("step"))
        loading = asyncio.create_task(commands.load("3", "of_a", None, {}))
        desired = await state.until(lambda desired: desired if desired.trials else None)
        await state.change(reverted(options, desired, desired.trials[0], {}, "it failed"))
        with pytest.raises(InvalidArgument, match="it failed"):
            await loading
        desired = await state.until(lambda desired: desired)
        assert {each for each in desired.snapshot.models if desired.runs(each)} == {"of_a", "of_b", "step"}
        assert await load("4", "of_a") == {"of_a", "of_b", *steps}
        desired = await state.until(lambda desired: desired)
        assert (desired.gone, desired.failed) == ({"step": {1: RENAMED}}, set())
        await commands.unload("5", "step", False)
        desired = await state.until(lambda desired: desired)
        assert set(desired.snapshot.models) == {"of_a", "of_b"}
        shutil.rmtree(tmp_path / "a/step")
        assert await load("6", "step") == {"of_a", "of_b", "step"}
        desired = await state.until(lambda desired: desired)
        assert desired.gone == {name: {1: RENAMED} for name in steps}

    asyncio.run(scenario())


def test_models_that_take_long_to_be_read_hold_nothing_else_up(tmp_path: Path) -> None:
    """A Python model says itself what it is, which may take minutes; the state is stored meanwhile."""
    released = tmp_path / "released"
    names = [f"slow{number}" for number in range(4 + (os.cpu_count() or 1))]
    for name in names:
        write(tmp_path, python_model(name) | {f"{name}/1/model.py": WAITS_TO_BE_READ.format(released=str(released))})
    options = ControllerOptions(
        (str(tmp_path),), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=()
    )

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        desired = await asyncio.to_thread(read_desired_state, options, ClusterFacts((NodeFacts(4),)))
        await state.change(desired)
        no_files: Any = None  # which no command here brings
        commands = ModelCommands(options, state, no_files, ModelTable())
        loads = [asyncio.create_task(commands.load(name, name, None, {})) for name in names]
        await asyncio.sleep(0)  # they begin
        try:
            async with asyncio.timeout(10.0):
                await state.change(desired)
        finally:
            released.touch()
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    asyncio.run(scenario())


def test_a_model_that_waits_and_is_refused_meanwhile_leaves_no_trace_of_that_when_it_is_placed(tmp_path: Path) -> None:
    """A version that it does not have would keep the server from being ready."""
    cpus = 'parameters { key: "eagleray.num_cpus" value { string_value: "3" } }'
    write(tmp_path, python_model("m", TENSORS + cpus, versions=[2]))
    options = ControllerOptions(
        (str(tmp_path),), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=("m",)
    )

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, ClusterFacts((NodeFacts(2),))))
        no_files: Any = None
        commands = ModelCommands(options, state, no_files, ModelTable())
        with pytest.raises(InvalidArgument, match="needs 3 CPUs"):
            await commands.load("1", "m", None, {})
        desired = await state.until(lambda desired: desired)
        table = ModelTable()
        table.replace(with_waiting(options, ClusterFacts((NodeFacts(4),)), desired), {})
        assert {number: entry.state for number, entry in table.models["m"].versions.items()} == {2: LOADING}

    asyncio.run(scenario())


def test_a_load_for_which_there_is_no_room_fails_and_asks_for_no_node(tmp_path: Path) -> None:
    cpus = 'parameters { key: "eagleray.num_cpus" value { string_value: "3" } }'
    write(tmp_path, python_model("m", TENSORS + cpus))
    options = ControllerOptions(
        (str(tmp_path),), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=()
    )

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, ClusterFacts((NodeFacts(2),))))
        no_files: Any = None
        with pytest.raises(InvalidArgument, match="needs 3 CPUs"):
            await ModelCommands(options, state, no_files, ModelTable()).load("1", "m", None, {})
        assert wanted(await state.until(lambda desired: desired)) == []

    asyncio.run(scenario())


def test_a_load_that_takes_long_to_read_undoes_no_load_of_a_step_meanwhile(tmp_path: Path) -> None:
    """Both read the step; the one that says with what it is loaded is done first."""
    released = tmp_path / "released"
    slow = python_model("slow") | {"slow/1/model.py": WAITS_TO_BE_READ.format(released=str(released))}
    repository = write(
        tmp_path / "models",
        python_model("step") | slow | {"pipe/config.pbtxt": TENSORS + STEPS, "pipe/1": None},
    )
    options = ControllerOptions(
        (repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=()
    )

    async def scenario() -> None:
        state, commands = await started(options)

        whole = asyncio.create_task(commands.load("1", "pipe", None, {}))
        while not (tmp_path / "released.asked").exists():
            await asyncio.sleep(0.01)
        one = asyncio.create_task(commands.load("2", "step", CONFIG, {}))
        await commit(state, options)
        await one
        released.touch()
        await commit(state, options)
        await whole
        desired = await state.until(lambda desired: desired)
        config = desired.snapshot.models["step"].config
        assert config is not None and config.parameters["mine"].string_value == "1"
        assert desired.runs("pipe")

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("change", ["unloaded", "broken", "changed"])
def test_a_load_of_one_step_loads_no_other_step_of_its_ensembles(tmp_path: Path, change: str) -> None:
    """Not what was unloaded, nor what has changed in the repository since it was loaded."""
    repository = write(
        tmp_path,
        python_model("step") | python_model("other") | {"pipe/config.pbtxt": TENSORS + OTHER_STEPS, "pipe/1": None},
    )
    options = ControllerOptions(
        (repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=("pipe",)
    )

    async def scenario() -> None:
        state, commands = await started(options)
        match change:
            case "unloaded":
                await commands.unload("1", "other", False)
            case "broken":
                write(tmp_path, {"other/config.pbtxt": "foo: 1"})
            case "changed":
                write(tmp_path, {"other/config.pbtxt": TENSORS.replace("FP32", "INT8") + 'backend: "python"'})
        before = await state.until(lambda desired: desired)
        loading = asyncio.create_task(commands.load("2", "step", CONFIG, {}))
        desired = await state.until(lambda desired: desired if desired.trials else None)
        assert set(desired.trials[0].before) == {"step"}
        await commit(state, options)
        await loading
        desired = await state.until(lambda desired: desired)
        assert desired.snapshot.models.get("other") is before.snapshot.models.get("other")
        assert desired.gone == before.gone
        assert desired.runs("pipe")
        if change == "unloaded":
            loading = asyncio.create_task(commands.load("3", "pipe", None, {}))
            await commit(state, options)
            await loading
            desired = await state.until(lambda desired: desired)
            assert desired.runs("other")

    asyncio.run(asyncio.wait_for(scenario(), 60))


def explicit(repository: str) -> ControllerOptions:
    """Return the options of a controller that loads `m` at its start, and else what it is told."""
    return ControllerOptions(
        (repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=("m",)
    )


async def failed_at_the_start(options: ControllerOptions) -> tuple[ModelTable, CurrentState, ModelCommands]:
    """Return what a controller has whose only model has failed at its start."""
    table = ModelTable()
    state = CurrentState(StateStore(Table(), "test", options), lambda desired: table.replace(desired, {}))
    await state.change(await asyncio.to_thread(read_desired_state, options, ClusterFacts((NodeFacts(4),))))
    (model,) = table.deployments[0].models
    table.fail(model, "the weights are not where they were")
    no_files: Any = None  # which no command here brings
    return table, state, ModelCommands(options, state, no_files, table)


@pytest.mark.parametrize("served", [False, True], ids=["failed at the start", "lost its replicas"])
def test_a_model_whose_replicas_do_not_start_is_tried_again_when_it_is_to_be_loaded(
    tmp_path: Path, served: bool
) -> None:
    options = explicit(write(tmp_path, python_model("m")))

    async def scenario() -> None:
        table, state, commands = await failed_at_the_start(options)
        if served:
            entry = table.entry(table.deployments[0].models[0])
            entry.loaded("", 1.0)
            entry.lost_its_replicas("the weights are not where they were")
        loading = asyncio.create_task(commands.load("1", "m", None, {}))
        desired = await state.until(lambda desired: desired if desired.trials else None)
        reasons = {"m": {1: "nor are they now"}}
        await state.change(reverted(options, desired, desired.trials[0], reasons, "nor are they now"))
        with pytest.raises(InvalidArgument, match=r"^nor are they now$"):
            await loading
        loading = asyncio.create_task(commands.load("2", "m", None, {}))
        await commit(state, options)
        await loading
        table.succeed(["m"])
        await commands.load("3", "m", None, {})  # which is ready

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_model_that_failed_at_the_start_is_ready_when_its_load_is_answered(tmp_path: Path) -> None:
    options = explicit(write(tmp_path, python_model("m")))

    async def scenario() -> None:
        table, state, commands = await failed_at_the_start(options)
        (model,) = table.deployments[0].models
        loading = asyncio.create_task(commands.load("1", "m", None, {}))
        desired = await state.until(lambda desired: desired if desired.trials else None)
        assert (table.entry(model).state, table.entry(model).reason) == (LOADING, "")
        table.succeed(desired.trials[0].before)
        await commit(state, options)
        await loading
        assert (table.entry(model).state, table.entry(model).reason) == (READY, "")

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_commands_for_a_model_are_done_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    options = explicit(write(tmp_path, python_model("m")))

    async def scenario() -> None:
        _, state, commands = await failed_at_the_start(options)
        done: list[str] = []

        async def command(identity: str, loads: bool) -> None:
            if loads:
                await commands.load(identity, "m", None, {})
            else:
                await commands.unload(identity, "m", False)
            done.append(identity)

        given = [asyncio.create_task(command(*each)) for each in (("1", True), ("2", False), ("3", True), ("4", False))]
        for loaded in (["1"], ["1", "2", "3"]):
            await state.until(lambda desired: True if desired.trials else None)
            await asyncio.sleep(0.05)  # in which those that wait could overtake
            assert done == loaded[:-1]
            await commit(state, options)
        await asyncio.gather(*given)
        assert done == ["1", "2", "3", "4"]
        desired = await state.until(lambda desired: desired)
        assert "m" not in desired.snapshot.models

    asyncio.run(asyncio.wait_for(scenario(), 60))
