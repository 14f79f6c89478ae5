"""What holds of the desired state when whoever changes it is cancelled, or what is done about it fails."""

import asyncio
import threading
from typing import Any

import pytest

from deployments.control.current_state import CurrentState


class SlowStore:
    """Keeps what it is given once it is let go."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def save(self, desired: Any) -> None:
        self.asked.set()
        assert self.go_on.wait(10)
        self.stored.append(desired)


def test_a_change_that_is_being_stored_holds_though_who_asked_is_cancelled() -> None:
    async def run() -> None:
        store: Any = SlowStore()
        adopted: list[Any] = []
        state = CurrentState(store, adopted.append)

        async def change(desired: Any) -> None:
            async with state.lock:
                await state.change(desired)

        changing = asyncio.create_task(change("first"))
        await asyncio.to_thread(store.asked.wait, 10)
        for _ in range(2):
            changing.cancel()
            await asyncio.sleep(0)
        next_change = asyncio.create_task(change("second"))
        await asyncio.sleep(0.05)
        assert adopted == []
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await changing
        await next_change
        assert store.stored == adopted == ["first", "second"]

    asyncio.run(run())


def test_who_waits_for_a_change_hears_of_it_though_not_all_could_be_told() -> None:
    async def run() -> None:
        store: Any = SlowStore()
        store.go_on.set()

        def adopt(desired: Any) -> None:
            raise RuntimeError("can't start new thread")

        state = CurrentState(store, adopt)
        waiting = asyncio.create_task(state.until(lambda desired: desired or None))
        await asyncio.sleep(0)
        changed: Any = "loaded"
        with pytest.raises(RuntimeError):
            await state.change(changed)
        async with asyncio.timeout(5):
            assert await waiting == "loaded" == state.desired

    asyncio.run(run())
