"""What the controller tells followers before it has read the repositories."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.control import repository_controller
from deployments.control.publisher import Publisher
from deployments.control.repository_controller import RepositoryController


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
