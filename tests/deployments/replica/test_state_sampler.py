"""What a process notes of its models' state."""

import asyncio
from pathlib import Path
from typing import Any, cast

from deployments.core.counts import STATE, Label, ModelState, Totals
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.replica.state_sampler import StateSampler
from tests.deployments.lane.harness import Sink
from tests.deployments.replica.test_model_host import ECHO, host_of, planned

BUSY = """
import os
import time
""" + ECHO.replace(
    "        return [", '        while not os.path.exists("{}"):\n            time.sleep(0.001)\n        return ['
)
BODY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'


def test_a_busy_model_tells_what_runs_and_what_waits(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    async def run() -> None:
        rows = Totals()
        host = await host_of(planned(tmp_path / "models", "busy", BUSY.replace("{}", str(go_on)), ""), shared=True)
        sampler = StateSampler(host, Fleet("node", asyncio.get_running_loop(), lambda: None, Refusals(rows)), rows, 1.0)
        state = cast(ModelState, rows.row(Label(STATE, "busy", 1)))
        sampler.sample()
        assert (state.ready_count, state.executing_count, state.oldest_age_ns) == (1, 0, 0)
        sinks, target = [Sink() for _ in range(3)], host.target("busy")
        assert target is not None
        for sink in sinks:
            target.submit((BODY,), None, sink)
        pool: Any = host.served["busy", 1].model.pool
        async with asyncio.timeout(30):
            while not pool.executing_count:
                await asyncio.sleep(0.001)
        sampler.sample()
        assert (state.ready_count, state.executing_count) == (1, 1) and state.oldest_age_ns > 0
        go_on.touch()
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 30)
        sampler.sample()
        assert (state.ready_count, state.executing_count, state.oldest_age_ns) == (1, 0, 0)
        await host.apply([])
        sampler.sample()
        assert state.values() == [0] * 5
        await host.close()

    asyncio.run(run())


def test_a_model_that_does_not_load_is_unavailable_and_counted(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Totals()
        host = await host_of(planned(tmp_path, "broken", "raise RuntimeError('not today')", ""))
        StateSampler(host, Fleet("node", asyncio.get_running_loop(), lambda: None, Refusals(rows)), rows, 1.0).sample()
        assert cast(ModelState, rows.row(Label(STATE, "broken", 1))).values() == [0, 0, 0, 0, 1]
        await host.close()

    asyncio.run(run())
