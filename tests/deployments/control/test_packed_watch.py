"""Whose replicas the controller is told of at once."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from deployments.control.packed_watch import PackedWatch
from repository_loader.deployment_plan import DeploymentPlan, Place


def group(app: str, placement: Any = "packed") -> DeploymentPlan:
    return DeploymentPlan(app, "group", placement, (), 1, 0.05, 0.0, 0)


def test_it_tells_of_packed_groups_of_the_plan_on_the_loop_whatever_thread_brings_the_news() -> None:
    listeners: dict[Place, Callable[[tuple[Any, ...]], None]] = {}

    def watch(app: str, name: str, listener: Callable[[tuple[Any, ...]], None]) -> Callable[[], None]:
        listeners[app, name] = listener
        return lambda: listeners.pop((app, name)) and None

    async def run() -> None:
        told: list[tuple[Place, int]] = []
        groups = PackedWatch(
            asyncio.get_running_loop(), lambda place: told.append((place, threading.get_ident())), watch
        )
        groups.follow([group("a"), group("b"), group("m", "isolated")])
        assert listeners.keys() == {("a", "group"), ("b", "group")}
        await asyncio.to_thread(listeners["b", "group"], ())
        await asyncio.sleep(0)
        assert told == [(("b", "group"), threading.get_ident())]
        before = listeners["b", "group"]
        groups.follow([group("b")])
        assert listeners == {("b", "group"): before}

    asyncio.run(run())
