"""Repositories that are registered and unregistered while the server runs."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import Origin, committed, loaded
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import read_models
from deployments.control.repository_commands import MAX_REPOSITORIES, RepositoryCommands
from deployments.control.state_store import StateStore
from protocol.errors import AlreadyExists, InvalidArgument, Unsupported
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.repository import find_models
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_state_store import Table
from tests.deployments.control.test_waiting_models import with_waiting
from tests.repository_loader.repositories import TENSORS, python_model, write

FACTS = ClusterFacts((NodeFacts(4),))


class Controller:
    """Commands on a state that is kept."""

    def __init__(self, options: ControllerOptions, values: Table) -> None:
        self.options = options
        self.state = CurrentState(StateStore(values, "test", options), lambda desired: None)
        self.commands = RepositoryCommands(options, self.state)

    def names(self, name: str) -> set[str]:
        """Return what is read when a model is to be loaded."""
        assert self.state.desired is not None
        return set(read_models(self.options, self.state.desired, name, None).models)


@pytest.fixture
def options(tmp_path: Path) -> ControllerOptions:
    first = write(tmp_path / "a", python_model("m"))
    write(tmp_path / "b", {**python_model("other"), **python_model("x")})
    return ControllerOptions((first,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")


async def started(options: ControllerOptions, values: Table) -> Controller:
    controller = Controller(options, values)
    await controller.state.change(read_desired_state(options, FACTS))
    return controller


def test_models_of_a_registered_repository_are_there_also_for_the_next_controller(
    options: ControllerOptions, tmp_path: Path
) -> None:
    async def scenario() -> None:
        values, path = Table(), str(tmp_path / "b")
        controller = await started(options, values)
        assert controller.names("other") == set()
        await controller.commands.register("1", path + "/", {"x": "y"})
        next_one = Controller(options, values)
        await next_one.state.restore()
        await next_one.commands.register("1", path, {"x": "y"})  # the same command, which comes again
        assert next_one.names("other") == {"other"}
        assert (next_one.names("y"), next_one.names("x")) == ({"y"}, set())
        assert await next_one.commands.known() == {options.repositories[0]: {}, path: {"x": "y"}}
        await next_one.commands.unregister("2", path)
        assert next_one.names("other") == set()
        assert next_one.names("m") == {"m"}

    asyncio.run(scenario())


def test_what_is_loaded_of_an_unregistered_repository_stays_loaded(options: ControllerOptions) -> None:
    async def scenario() -> None:
        controller = Controller(options, Table())
        await controller.state.change(read_desired_state(replace(options, load_models=("m",)), FACTS))
        await controller.commands.unregister("1", options.repositories[0])
        desired = await controller.state.until(lambda desired: desired)
        assert desired.runs("m")
        assert controller.names("m") == set()
        assert with_waiting(options, ClusterFacts((NodeFacts(8),)), desired).runs("m")

    asyncio.run(scenario())


def test_a_registered_repository_that_vanishes_harms_no_model_of_others(
    options: ControllerOptions, tmp_path: Path
) -> None:
    maps = """step {{ model_name: "{0}" model_version: -1
        input_map {{ key: "X" value: "{1}" }} output_map {{ key: "Y" value: "{2}" }} }}"""
    steps = maps.format("m", "X", "BETWEEN") + maps.format("other", "BETWEEN", "Y")
    config = f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {steps} }}'
    write(tmp_path / "a", {"e/config.pbtxt": config, "e/1": None, "broken/config.pbtxt": "foo: 1"})

    async def scenario() -> None:
        controller = await started(options, Table())
        await controller.commands.register("1", str(tmp_path / "b"), {})
        before = await controller.state.until(lambda desired: desired)
        read = read_models(options, before, "e", None)
        desired = loaded(options, before, read, {"e": Origin(), "broken": Origin()})
        desired = committed(options, desired, desired.trials[0])
        assert desired.runs("e") and desired.runs("other")
        (tmp_path / "b").rename(tmp_path / "gone")
        read = read_models(options, desired, "m", None)
        assert loaded(options, desired, read, {"m": Origin()}).snapshot == desired.snapshot
        assert "other" not in read_models(options, desired, "other", None).models
        waiting = replace(desired, snapshot=read_models(options, desired, "broken", None))
        assert with_waiting(options, ClusterFacts((NodeFacts(8),)), waiting).waiting == {"broken"}
        unreadable: dict[str, str] = {}
        known = find_models(tuple(desired.repositories), options.loader, unreadable)
        assert (set(known), set(unreadable)) == ({"m", "e", "broken"}, {str(tmp_path / "b")})

    asyncio.run(scenario())


def test_a_model_with_another_name_than_its_folder_is_called_so_whatever_its_configuration_says(
    options: ControllerOptions, tmp_path: Path
) -> None:
    write(tmp_path / "c", python_model("m", f'name: "m" {TENSORS}'))

    async def scenario() -> None:
        controller = await started(options, Table())
        await controller.commands.register("1", str(tmp_path / "c"), {"m": "renamed"})
        assert controller.state.desired is not None
        (model,) = read_models(options, controller.state.desired, "renamed", None).models.values()
        assert (model.failure, model.name, model.packages[0].config.name) == (None, "renamed", "renamed")

    asyncio.run(scenario())


def test_what_cannot_be_registered_is_refused_in_tritons_words(options: ControllerOptions, tmp_path: Path) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "b")
        commands = (await started(options, Table())).commands
        with pytest.raises(InvalidArgument, match=r"^failed to register '/missing', repository not found$"):
            await commands.register("1", "/missing", {})
        with pytest.raises(InvalidArgument, match=r"^failed to register 's3:///', repository not found$"):
            await commands.register("1", "s3:///", {})
        with pytest.raises(InvalidArgument, match=r"^failed to unregister '/missing', repository not found$"):
            await commands.unregister("1", "/missing")
        await commands.register("2", path, {"other": "one"})
        with pytest.raises(AlreadyExists, match=f"^model repository '{path}' has already been registered$"):
            await commands.register("3", path, {})
        with pytest.raises(
            AlreadyExists, match=r"^failed to register 'one', there is a conflicting mapping for 'one'$"
        ):
            await commands.register("4", write(tmp_path / "c", python_model("m")), {"m": "one"})
        for number in range(MAX_REPOSITORIES - 2):
            await commands.register(f"{number}-", write(tmp_path / f"empty{number}", {"x": ""}), {})
        with pytest.raises(InvalidArgument, match="256 repositories are registered already"):
            await commands.register("5", str(tmp_path / "c"), {})

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_repositories_are_registered_in_explicit_mode_only(options: ControllerOptions, mode: Any) -> None:
    other = ControllerOptions((), LoaderOptions(), PlanSettings(), Limits(), control_mode=mode)
    nothing: Any = None  # which a refused command does not touch
    commands = RepositoryCommands(other, nothing)
    for command in (commands.register("1", "/srv", {}), commands.unregister("1", "/srv")):
        with pytest.raises(Unsupported, match="is not allowed if model control mode is not EXPLICIT"):
            asyncio.run(command)
