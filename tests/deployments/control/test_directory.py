"""What a follower knows after any sequence of the controller's news."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from deployments.control.directory import LOADING, READY, Directory, ModelEntry, VersionEntry
from deployments.control.publisher import MAX_GONE_KEYS, Publisher


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


def entry(state: str = LOADING, config: str = '{"name": "a"}') -> dict[str, Any]:
    return ModelEntry(config, "python", "", {1: VersionEntry(state)}).to_dict()


async def follow(publisher: Publisher, directory: Directory) -> dict[str, Any]:
    """Ask as an ingress does; returns the news as they travel."""
    async with asyncio.timeout(5):
        news = await publisher.news(directory.epoch, directory.generation)
    travelled = json.loads(json.dumps(news))
    directory.take(travelled)
    return dict(travelled["tables"])


@in_a_loop
async def test_follower_gets_everything_first_and_then_only_what_changed() -> None:
    publisher, directory = Publisher(), Directory()
    models = {name: entry() for name in ("a", "b", "c")}
    publisher.publish(settled=False, models=models, deployments={"a#v1": ["a", "v1"]}, embedded={"b/1": {"x": 1}})
    await follow(publisher, directory)
    assert directory.known and not directory.settled
    assert (set(directory.models), directory.deployments) == ({"a", "b", "c"}, {"a#v1": ("a", "v1")})
    assert directory.embedded == {"b/1": {"x": 1}}

    publisher.publish(settled=True, models=models | {"b": entry(READY)})
    assert await follow(publisher, directory) == {
        "models": {"b": entry(READY)},
        "deployments": {},
        "embedded": {},
        "copies": {},
        "client_state": {},
    }
    assert directory.settled and directory.models["b"].versions[1].state == READY

    del models["c"]
    publisher.publish(models=models | {"b": entry(READY)}, client_state={"region/one": {"key": "/one"}})
    tables = await follow(publisher, directory)
    assert (tables["models"], tables["deployments"]) == ({"c": None}, {})
    assert set(directory.models) == {"a", "b"}
    assert directory.client_state == {"region/one": {"key": "/one"}}


@in_a_loop
async def test_nothing_is_told_while_nothing_has_changed() -> None:
    publisher, directory = Publisher(), Directory()
    publisher.publish(settled=True, models={"a": entry(READY)})
    await follow(publisher, directory)
    assert not publisher.publish(settled=True, models={"a": entry(READY)})
    waiting = asyncio.create_task(follow(publisher, directory))
    await asyncio.sleep(0)
    assert not waiting.done()
    publisher.publish(models={"a": entry()})
    assert set((await waiting)["models"]) == {"a"}


@in_a_loop
async def test_new_controller_is_heard_though_its_generation_is_lower() -> None:
    old, directory = Publisher(), Directory()
    for state in (LOADING, READY, LOADING, READY):
        old.publish(settled=True, models={"a": entry(state), "gone": entry()})
    await follow(old, directory)
    new = Publisher()
    new.publish(settled=True, models={"a": entry(READY)})
    assert directory.generation > new.generation
    await follow(new, directory)
    assert (directory.epoch, set(directory.models)) == (new.epoch, {"a"})


@in_a_loop
async def test_follower_that_is_in_doubt_gets_everything_again() -> None:
    publisher, directory = Publisher(), Directory()
    publisher.publish(settled=True, models={"a": entry(READY)})
    await follow(publisher, directory)
    directory.models.clear()
    directory.ask_for_all()
    await follow(publisher, directory)
    assert set(directory.models) == {"a"}


@in_a_loop
async def test_follower_that_slept_while_too_much_went_gets_everything() -> None:
    publisher, directory = Publisher(), Directory()
    publisher.publish(client_state={"old": 1})
    await follow(publisher, directory)
    for number in range(MAX_GONE_KEYS + 2):
        publisher.publish(client_state={f"key{number}": 1})
    assert len((await publisher.news("", -1))["tables"]["client_state"]) == 1
    await follow(publisher, directory)
    assert directory.client_state == {f"key{MAX_GONE_KEYS + 1}": 1}


@pytest.mark.parametrize(("config", "again"), [('{"name": "a"}', True), ('{"name": "b"}', False)])
@in_a_loop
async def test_configuration_is_parsed_once_per_change(config: str, again: bool) -> None:
    publisher, directory = Publisher(), Directory()
    publisher.publish(models={"a": entry()})
    await follow(publisher, directory)
    parsed = directory.models["a"].model_config
    publisher.publish(models={"a": entry(READY, config)})
    await follow(publisher, directory)
    now = directory.models["a"].model_config
    assert now is not None and now.name == json.loads(config)["name"]
    assert (now is parsed) is again


@in_a_loop
async def test_what_a_controller_of_another_version_tells_besides_or_not_at_all_keeps_nobody_from_following() -> None:
    publisher, newer, older = Publisher(), Directory(), Directory()
    publisher.publish(settled=True, models={"a": entry(READY)}, deployments={"a#v1": ["a", "v1"]})
    news = await publisher.news("", -1)
    row = news["tables"]["models"]["a"]
    version = row["versions"]["1"]
    more = row | {"mood": "good", "versions": {"1": version | {"mood": "good"}}}
    newer.take(news | {"tables": news["tables"] | {"models": {"a": more}, "moods": {"a": "good"}}})
    less = {"config": row["config"], "backend": row["backend"], "reason": "", "versions": {"1": {"state": READY}}}
    older.take(news | {"tables": {"models": {"a": less}, "deployments": news["tables"]["deployments"]}})
    for directory in (newer, older):
        assert directory.taken == {("a", 1)}
        assert directory.deployments == {"a#v1": ("a", "v1")}
