"""Tasks that nobody waits for."""

import asyncio

import pytest

from deployments.core.side_tasks import SideTasks


def test_one_that_ends_by_an_exception_is_logged_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("no such counter")

    async def run() -> bool:
        tasks, goes_on = SideTasks(asyncio.get_running_loop()), asyncio.Event()
        tasks.begin(fails(), "metrics of Ray")

        async def last() -> None:
            await asyncio.sleep(0.02)
            goes_on.set()

        tasks.begin(last(), "state of the models")
        async with asyncio.timeout(10):
            return await goes_on.wait()

    assert asyncio.run(run())
    (record,) = caplog.records
    assert "'metrics of Ray' has ended" in record.message and record.exc_info


def test_those_that_are_cancelled_end_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        tasks = SideTasks(asyncio.get_running_loop())
        tasks.begin(forever(), "load report")
        await asyncio.sleep(0)
        tasks.cancel()
        async with asyncio.timeout(10):
            await ended.wait()

    asyncio.run(run())
    assert not caplog.records
