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
