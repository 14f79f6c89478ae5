"""A controller that is to end answers what would keep it from that."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from deployments.control.open_calls import OpenCalls
from protocol.errors import Unavailable

LOOK_S = 0.01


class Deletion:
    """Whether the application is being deleted, as Serve says it."""

    def __init__(self) -> None:
        self.begun = False
        self.failures = 1
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError
        return self.begun


def run(test: Callable[[OpenCalls, Deletion], Awaitable[None]]) -> None:
    async def started() -> None:
        deletion = Deletion()
        calls = OpenCalls(deletion, LOOK_S)
        watching = asyncio.create_task(calls.run())
        async with asyncio.timeout(10):
            await test(calls, deletion)
        assert not watching.done()
        watching.cancel()

    asyncio.run(started())


def test_calls_that_wait_are_answered_when_the_controller_is_to_end() -> None:
    """Also where Serve could not say so at first."""

    async def test(calls: OpenCalls, deletion: Deletion) -> None:
        waiting = [asyncio.create_task(calls.wait(asyncio.Event().wait())) for _ in range(3)]
        await asyncio.sleep(5 * LOOK_S)
        assert not any(each.done() for each in waiting)
        deletion.begun = True
        for each in waiting:
            with pytest.raises(Unavailable):
                await each

    run(test)


def test_calls_that_end_are_answered_and_nobody_is_asked_without_one() -> None:
    async def test(calls: OpenCalls, deletion: Deletion) -> None:
        assert await calls.wait(asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ValueError, match="wrong"):
            await calls.wait(_fail())
        await asyncio.sleep(5 * LOOK_S)
        assert deletion.asked == 0

    run(test)


def test_a_call_that_is_cancelled_ends_what_it_waits_for() -> None:
    async def test(calls: OpenCalls, deletion: Deletion) -> None:
        ended = asyncio.Event()

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.create_task(calls.wait(wait()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await ended.wait()

    run(test)


async def _fail() -> None:
    raise ValueError("wrong")
