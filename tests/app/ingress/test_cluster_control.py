"""What an ingress that stops says to those who wait for a model to load."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.ingress import cluster_control
from app.ingress.cluster_control import ClusterControl
from app.service.model_control import LoadRequest
from app.service.models import Models
from deployments.control.directory import READY, Directory
from protocol.errors import Unavailable
from tests.app.http.served import FakeFleet, FakeHost, entry


class SlowController:
    """Hears every command, and answers none."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattr__(self, method: str) -> Any:
        class Method:
            @staticmethod
            def remote(command: str, name: str, *arguments: Any) -> "asyncio.Future[dict[str, Any]]":
                self.heard.append(f"{method} {name}")
                return asyncio.get_running_loop().create_future()

        return Method


def run(test: Any) -> None:
    async def started() -> None:
        controller = SlowController()
        fleet: Any = None
        host: Any = FakeHost
        models = Models(host, fleet)
        await test(ClusterControl(controller, models), controller)  # type: ignore[arg-type]

    asyncio.run(started())


def test_who_waits_for_a_load_hears_that_the_server_stops_and_so_does_who_comes_later() -> None:
    async def test(control: ClusterControl, controller: SlowController) -> None:
        load = asyncio.create_task(control.load(LoadRequest("slow")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert controller.heard == ["load slow"]
        control.stop()
        with pytest.raises(Unavailable, match="the server is stopping"):
            await load
        with pytest.raises(Unavailable, match="the server is stopping"):
            await control.unload("slow", unload_dependents=False)

    run(test)


def test_a_client_that_leaves_ends_its_command_as_before() -> None:
    async def test(control: ClusterControl, controller: SlowController) -> None:
        load = asyncio.create_task(control.load(LoadRequest("slow")))
        await asyncio.sleep(0)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

    run(test)


@pytest.mark.parametrize("method", ["load", "unload"])
def test_a_command_is_answered_when_the_ingress_has_followed_however_late_it_does(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load it takes more than the 2 s for which all ingresses are waited for."""

    async def late(epoch: str, generation: int) -> bool:
        return False

    class Controller(SlowController):
        def __getattr__(self, method: str) -> Any:
            async def told() -> dict[str, Any]:
                return {"epoch": "epoch", "generation": 2, "error": None}

            return SimpleNamespace(remote=lambda *arguments: told())

    async def scenario() -> None:
        host, fleet = FakeHost(), FakeFleet()
        models = Models(host, fleet)  # type: ignore[arg-type]
        models.directory = Directory("epoch", 1, True, {})
        control = ClusterControl(Controller(), models)  # type: ignore[arg-type]
        command = control.load(LoadRequest("m")) if method == "load" else control.unload("m", unload_dependents=False)
        task = asyncio.create_task(command)
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        models.directory = Directory("epoch", 2, True, {})
        models.changed()
        await asyncio.wait_for(task, 30)

    monkeypatch.setattr(cluster_control, "all_have_followed", late)
    asyncio.run(scenario())


def test_a_load_waits_for_no_model_that_failed_here() -> None:
    """Another node has loaded it, and is asked."""
    host, fleet = FakeHost(), FakeFleet()
    models = Models(host, fleet)  # type: ignore[arg-type]
    models.directory = Directory("epoch", 1, True, {"m": entry("m", (1, READY, ""))})

    async def scenario() -> None:
        waiting = asyncio.create_task(models.until_ready("m"))
        await asyncio.sleep(0)
        host.failures["m", 1] = "there is no such file"
        models.changed()
        await asyncio.sleep(0)
        assert not waiting.done(), "it has not been told to load it"
        models.directory.embedded["m/1"] = {"digest": "d"}
        models.changed()
        assert models.is_embedded("m")
        await asyncio.wait_for(waiting, 30)

    asyncio.run(scenario())
