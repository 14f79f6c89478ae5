"""Work for threads: its order, how much of it is done at a time, and what becomes of what is withdrawn."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from deployments.lane.work_queue import WorkQueue
from tests.busy_queue import busy_queue


class Body:
    """Something that work holds."""


def test_what_comes_first_is_done_first_by_as_many_threads_as_there_are() -> None:
    async def test() -> None:
        lock, running, most = threading.Lock(), 0, 0

        def work(number: int) -> int:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            with lock:
                running -= 1
            if number == 7:
                raise ValueError("seven")
            return number

        told: list[Any] = []
        queue = WorkQueue(asyncio.get_running_loop(), "test", 2)
        for number in range(50):
            queue.submit(
                lambda n=number: work(n), lambda result, error: told.append(result if error is None else error)
            )
        async with asyncio.timeout(10):
            while len(told) < 50:
                await asyncio.sleep(0)
        assert most <= 2
        assert sorted(each for each in told if isinstance(each, int)) == [n for n in range(50) if n != 7]
        assert [str(each) for each in told if not isinstance(each, int)] == ["seven"]
        queue.close()

    asyncio.run(test())


def test_what_is_withdrawn_is_let_go_of_at_once() -> None:
    async def test() -> None:
        with busy_queue() as (queue, go_on):
            body, told = Body(), []
            gone = weakref.ref(body)
            work = queue.submit(lambda body=body: told.append(body), lambda result, error: told.append(result))
            del body
            last = queue.submit(lambda: 1, lambda result, error: told.append(result))
            work.withdraw()
            assert gone() is None
            assert len(queue) == 1
            go_on.set()
            async with asyncio.timeout(10):
                while not told:
                    await asyncio.sleep(0)
            assert told == [1]
            last.withdraw()  # too late

    asyncio.run(test())


def test_nobody_is_told_of_what_was_withdrawn_in_the_middle() -> None:
    async def test() -> None:
        go_on, told = threading.Event(), []
        queue = WorkQueue(asyncio.get_running_loop(), "test", 1)
        begun = queue.submit(lambda: go_on.wait(30), lambda result, error: told.append("begun"))
        begun.withdraw()
        queue.submit(lambda: 1, lambda result, error: told.append("next"))
        go_on.set()
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert told == ["next"]
        queue.close()

    asyncio.run(test())


def test_a_thread_that_cannot_be_started_fails_the_work_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        told: list[Any] = []
        queue = WorkQueue(asyncio.get_running_loop(), "test", 1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(2):
                queue.submit(lambda: 1, lambda result, error: told.append(str(error)))
            assert not told, "not before it is known what is to be done"
            async with asyncio.timeout(10):
                while len(told) < 2:
                    await asyncio.sleep(0)
        queue.submit(lambda: 2, lambda result, error: told.append(result))
        async with asyncio.timeout(10):
            while len(told) < 3:
                await asyncio.sleep(0)
        assert told == ["can't start new thread", "can't start new thread", 2]
        queue.close()

    asyncio.run(test())


def test_what_is_done_holds_nobody_who_was_told() -> None:
    async def test() -> None:
        queue = WorkQueue(asyncio.get_running_loop(), "test", 1)
        body, told = Body(), asyncio.Event()
        gone = weakref.ref(body)

        def tell(result: Any, error: BaseException | None, body: Body = body) -> None:
            kept.append(body)
            assert work is not None  # as one whose work is counted knows it
            told.set()

        kept: list[Body] = []
        work = queue.submit(lambda: 1, tell)
        del tell, body
        async with asyncio.timeout(10):
            await told.wait()
        kept.clear()
        assert gone() is None, "without a collection of garbage"
        queue.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(test())
    finally:
        gc.enable()
