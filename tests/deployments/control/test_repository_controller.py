"""What the controller tells followers before it has read the repositories."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.control import repository_controller
from deployments.control.publisher import Publisher
from deployments.control.repository_controller import RepositoryController
from repository_loader.waits import waiting


@pytest.mark.parametrize(
    ("unread", "epoch", "told"),
    [
        ("/m cannot be read", "", {"unread": "/m cannot be read"}),
        ("/m cannot be read", "former", None),
        ("", "", None),
    ],
    ids=["a follower that knows nothing", "one that serves what a former controller told", "nothing is wrong"],
)
def test_a_follower_hears_why_a_repository_cannot_be_read(
    unread: str, epoch: str, told: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_controller, "_WATCH_S", 0.01)

    async def run() -> Any:
        known = {"_status_known": asyncio.Event(), "_first_known": asyncio.Event()}
        controller: Any = SimpleNamespace(_unread=unread, _publisher=Publisher(), **known)
        return await RepositoryController.watch(controller, epoch, 3)

    assert asyncio.run(run()) == told


def test_a_follower_hears_what_the_first_reading_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may have failed once before it lets a model be fetched."""
    monkeypatch.setattr(repository_controller, "_WATCH_S", 0.05)

    async def run() -> list[Any]:
        known = {"_status_known": asyncio.Event(), "_first_known": asyncio.Event()}
        controller: Any = SimpleNamespace(_unread="s3://m is down", _publisher=Publisher(), **known)
        with waiting("first"):
            await asyncio.sleep(0.02)
            with waiting("second"):
                told = [await RepositoryController.watch(controller), await RepositoryController.watch(controller, "e")]
        return [*told, await RepositoryController.watch(controller)]

    assert asyncio.run(run()) == [{"unread": "first"}, None, {"unread": "s3://m is down"}]


@pytest.mark.parametrize(
    ("trials", "ends_later", "asked"),
    [((), False, [{0}, {0}]), (("trial",), False, []), ((), True, [])],
    ids=["nothing is to return", "a trial may fail", "something still leaves"],
)
def test_cards_that_no_model_is_on_are_given_back(
    trials: tuple[str, ...], ends_later: bool, asked: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked about until none is left, and then not before something changes."""
    calls: list[set[int]] = []

    def release(timeout_s: float, needed: set[int]) -> bool:
        calls.append(needed)
        return len(calls) == 2

    monkeypatch.setattr(repository_controller, "release_cards", release)
    plan = SimpleNamespace(deployments=[SimpleNamespace(gpu=0), SimpleNamespace(gpu=None)])
    desired: Any = SimpleNamespace(plan=plan, trials=trials)
    controller: Any = SimpleNamespace(_spare_cards=True, _reconciler=SimpleNamespace(ends_later=ends_later))

    async def look() -> None:
        for _ in range(3):
            await RepositoryController._release_cards(controller, desired)

    asyncio.run(look())
    assert calls == asked
