"""The scaler's loop, at a Serve that refuses."""

import asyncio
from dataclasses import replace

import pytest

from deployments.control.autoscaler import Key
from deployments.control.scaler import Scaler
from deployments.core.counts import Counts, Label, Totals
from repository_loader.autoscaling import Autoscaling
from tests.deployments.control.test_autoscaler import KEY, deployment

RULES = Autoscaling(1, 6, target_ongoing_requests=4)


def test_what_serve_refused_is_not_asked_for_once_the_model_has_gone() -> None:
    asked: list[tuple[Key, int]] = []
    was_asked = asyncio.Event()

    def refuse(app: str, name: str, count: int) -> None:
        asked.append(((app, name), count))
        loop.call_soon_threadsafe(was_asked.set)
        raise RuntimeError("there is no such deployment")

    async def twice() -> None:
        for _ in range(2):
            was_asked.clear()
            await was_asked.wait()

    async def scenario() -> None:
        scaler = Scaler(loop, Totals(), dict, refuse)
        running = loop.create_task(scaler.run())
        await scaler.follow([deployment(RULES)])
        scaler.take("ingress", {"m/1": (12.0, 100.0)})
        await twice()
        assert set(asked) == {(KEY, 3)}
        await scaler.follow([replace(deployment(RULES), app_name="other")])
        asked.clear()
        await twice()
        assert {app for (app, _), _ in asked} == {"other"}
        running.cancel()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(scenario())


class FullRows(Totals):
    """There is room for no row once it is `full`."""

    full = False

    def row(self, label: Label) -> Counts:
        if self.full:
            raise OSError("No space left on device")
        return super().row(label)


def test_an_error_ends_no_scaling_and_what_was_decided_is_told_then(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        asked: asyncio.Queue[tuple[Key, int]] = asyncio.Queue()
        rows = FullRows()
        scaler = Scaler(
            loop, rows, dict, lambda app, name, count: loop.call_soon_threadsafe(asked.put_nowait, ((app, name), count))
        )
        running = loop.create_task(scaler.run())
        await scaler.follow([deployment(RULES)])
        rows.full = True
        scaler.take("ingress", {"m/1": (12.0, 100.0)})
        async with asyncio.timeout(10):
            assert await asked.get() == (KEY, 3)
        assert "the autoscaler tries again" in caplog.text
        running.cancel()

    asyncio.run(scenario())
