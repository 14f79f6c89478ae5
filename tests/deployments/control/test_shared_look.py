"""However many ask, and whatever it waits for, no more than one look is under way."""

import asyncio

from deployments.control.shared_look import SharedLook


class Folder:
    """Looks at it hang while it is away."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.began = 0
        self.under_way = 0

    async def look(self) -> None:
        self.began += 1
        self.under_way += 1
        await self.there.wait()
        self.under_way -= 1


def test_a_hundred_that_ask_a_folder_that_is_away_have_one_look_under_way_and_wait_no_longer_than_they_would() -> None:
    async def scenario() -> None:
        folder = Folder()
        shared = SharedLook(folder.look, patience_s=0.01)
        for _ in range(10):
            await asyncio.gather(*(shared.take() for _ in range(10)))
            assert folder.under_way == folder.began == 1
        folder.there.set()
        await shared.take()
        assert (folder.under_way, folder.began) == (0, 2)

    asyncio.run(scenario())


def test_who_asks_during_a_look_gets_the_next_as_that_one_may_have_missed_something() -> None:
    async def scenario() -> None:
        folder = Folder()
        shared = SharedLook(folder.look, patience_s=60.0)
        first = asyncio.create_task(shared.take())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.create_task(shared.take()) for _ in range(5)]
        await asyncio.sleep(0)
        folder.there.set()
        await asyncio.gather(first, *others)
        assert folder.began == 2

    asyncio.run(scenario())
