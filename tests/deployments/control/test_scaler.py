"""The scaler's loop, at a Serve that refuses."""

import asyncio
from dataclasses import replace

from deployments.control.autoscaler import Key
from deployments.control.scaler import Scaler
from deployments.core.counts import Totals
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
        await scaler.follow([deployment(RULES)])
        scaler.take("ingress", {"m/1": (12.0, 100.0)})
        await twice()
        assert set(asked) == {(KEY, 3)}
        await scaler.follow([replace(deployment(RULES), app_name="other")])
        asked.clear()
        await twice()
        assert {app for (app, _), _ in asked} == {"other"}
        scaler.close()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(scenario())
