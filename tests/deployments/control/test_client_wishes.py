"""What clients have loaded, unloaded and registered, and said of traffic, holds for whoever is deployed next."""

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.control.client_wishes import ClientWishes
from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState, Origin, loaded, unloaded, with_traffic
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import read_models
from deployments.control.repository_commands import registered
from deployments.control.state_store import StateStore
from repository_loader.repository import RepositoryError, find_models
from repository_loader.snapshot import Override
from repository_loader.traffic import Traffic
from tests.deployments.control.test_repository_watch import write
from tests.deployments.control.test_state_store import FACTS, Table, options_of


def with_model(
    options: ControllerOptions, desired: DesiredState, name: str, override: Override | None = None
) -> DesiredState:
    return loaded(options, desired, read_models(options, desired, name, override), {name: Origin(True, override)})


@pytest.fixture
def options(tmp_path: Path) -> ControllerOptions:
    """Return those of a repository with a, which is loaded at the start, b and c."""
    for name in ("a", "b", "c"):
        write(tmp_path / "models", name)
    return options_of(tmp_path / "models")


def next_state(options: ControllerOptions, desired: DesiredState, **others: object) -> DesiredState:
    """Return what a controller begins with that is deployed with other settings, after one with this state."""
    table, changed = Table(), replace(options, deployed="2", **others)  # type: ignore[arg-type]
    StateStore(table, "eagleray", options).save(desired)
    store = StateStore(table, "eagleray", changed)
    assert store.load() is None
    return read_desired_state(changed, FACTS, store.wishes())


def test_what_was_loaded_is_loaded_and_what_was_unloaded_is_not(options: ControllerOptions) -> None:
    desired = with_model(options, unloaded(options, read_desired_state(options, FACTS), ["a"]), "b")
    after = next_state(options, desired)
    assert set(after.snapshot.models) == {"b"} and after.origins == {"b": Origin()}
    assert set(next_state(options, desired, load_models=("a", "c")).snapshot.models) == {"b", "c"}
    assert set(next_state(options, desired, load_models=("*",)).snapshot.models) == {"a", "b", "c"}
    assert set(next_state(options, desired, control_mode="none", load_models=()).snapshot.models) == {"a", "b", "c"}


def test_models_that_a_deployment_names_anew_are_loaded_and_those_it_names_no_longer_are_not(
    options: ControllerOptions, tmp_path: Path
) -> None:
    options = replace(options, load_models=("a", "b"))
    before = read_desired_state(options, FACTS)
    assert set(before.snapshot.models) == {"a", "b"}
    assert set(next_state(options, before, load_models=("b",)).snapshot.models) == {"b"}
    assert set(next_state(options, before, load_models=("[bc]",)).snapshot.models) == {"b", "c"}
    assert set(next_state(options, before, load_models=()).snapshot.models) == set()
    all_of_them = read_desired_state(replace(options, load_models=("*",)), FACTS)
    after = next_state(replace(options, load_models=("*",)), unloaded(options, all_of_them, ["c"]), load_models=("a",))
    assert set(after.snapshot.models) == {"a"}
    left = next_state(options, unloaded(options, before, ["b"]), load_models=("a",))
    assert set(left.snapshot.models) == {"a"}
    again = replace(options, load_models=("a",))
    assert set(next_state(again, left, load_models=("a", "b")).snapshot.models) == {"a", "b"}


def test_what_a_client_has_sent_stays_though_its_model_is_named_no_longer(options: ControllerOptions) -> None:
    before = read_desired_state(options, FACTS)
    config = before.snapshot.models["a"].packages[0].config
    after = next_state(options, with_model(options, before, "a", Override(config, "")), load_models=("b",))
    assert set(after.snapshot.models) == {"a", "b"}


def test_who_kept_no_names_is_taken_to_have_had_the_same(options: ControllerOptions) -> None:
    wishes = ClientWishes.of(unloaded(options, read_desired_state(options, FACTS), ["a"]), options).to_dict()
    del wishes["asked"]
    assert not read_desired_state(options, FACTS, ClientWishes.from_dict(wishes)).snapshot.models


def test_a_model_is_loaded_with_what_its_client_has_sent(options: ControllerOptions, tmp_path: Path) -> None:
    write(tmp_path / "sent", "b", version=7)
    before = read_desired_state(options, FACTS)
    config = read_models(options, before, "b", None).models["b"].packages[0].config
    config.max_batch_size = 3
    override = Override(config, str(tmp_path / "sent/b"))
    after = next_state(options, with_model(options, before, "b", override))
    (package,) = after.snapshot.models["b"].packages
    assert (package.version, package.config.max_batch_size) == (7, 3) and after.origins["b"] == Origin(True, override)


def test_where_what_a_client_has_sent_is_lost_its_model_does_not_load(options: ControllerOptions) -> None:
    before = read_desired_state(options, FACTS)
    override = Override(read_models(options, before, "b", None).models["b"].packages[0].config, "/nonexistent/b")
    wishes = ClientWishes({"a": None, "b": override})

    def here(path: str) -> str:
        raise OSError("no such files")

    after = read_desired_state(options, FACTS, wishes, here)
    assert after.snapshot.models["a"].packages and after.snapshot.models["b"].failure


def test_traffic_holds_for_the_models_that_there_are(options: ControllerOptions) -> None:
    desired = with_traffic(read_desired_state(options, FACTS), "a", Traffic({1: 7.0}), None)
    desired = with_traffic(desired, "gone", Traffic({1: 7.0}), None)
    for others in ({}, {"control_mode": "none", "load_models": ()}):
        assert next_state(options, desired, **others).given_traffic == {"a": Traffic({1: 7.0})}


def test_repositories_that_clients_have_registered_stay_so_while_they_can_be_read(
    options: ControllerOptions, tmp_path: Path
) -> None:
    write(tmp_path / "more", "folder")
    desired = registered(read_desired_state(options, FACTS), str(tmp_path / "more"), {"folder": "named"})
    desired = with_model(options, desired, "named")
    after = next_state(options, desired)
    assert set(after.snapshot.models) == {"a", "named"}
    assert after.repositories == {options.repositories[0]: {}, str(tmp_path / "more"): {"folder": "named"}}
    (tmp_path / "more").rename(tmp_path / "away")
    with pytest.raises(RepositoryError):
        find_models([str(tmp_path / "more")], options.loader)
    after = next_state(options, desired)
    assert set(after.repositories) == set(options.repositories) and set(after.gone) == {"named"}


def test_a_repository_that_is_no_longer_given_is_left(options: ControllerOptions, tmp_path: Path) -> None:
    write(tmp_path / "other", "a")
    after = next_state(options, read_desired_state(options, FACTS), repositories=(str(tmp_path / "other"),))
    assert set(after.repositories) == {str(tmp_path / "other")}


@pytest.mark.parametrize("kept", [b"", b"\x80\x04 of before", b"eagleray state 1 \x02\0\0\0\0\0\0\0[]"])
def test_what_cannot_be_read_is_no_wish(options: ControllerOptions, kept: bytes) -> None:
    store = StateStore(Table({"state-eagleray": kept}), "eagleray", options)
    assert (store.load(), store.wishes()) == (None, ClientWishes())
