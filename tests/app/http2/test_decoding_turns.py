"""Who decodes large header blocks leaves half of the loop's time to the others."""

import asyncio
import itertools
import time

import pytest

from app.http2.decoding_turns import DecodingTurns

TOOK_S = 0.02


def test_after_a_block_that_took_long_the_others_have_the_loop_for_as_long() -> None:
    async def scenario() -> list[float]:
        turns, times_s = DecodingTurns(asyncio.get_running_loop()), list[float]()

        def decode() -> None:
            if not turns.take():
                turns.wait(decode)
                return
            times_s.append(time.monotonic())
            time.sleep(TOOK_S)

        for _ in range(4):
            decode()
        while len(times_s) < 4:
            await asyncio.sleep(0)
        return times_s

    times_s = asyncio.run(scenario())
    assert all(later - earlier > 1.9 * TOOK_S for earlier, later in itertools.pairwise(times_s))


def test_quick_blocks_have_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        loop, turn_count = asyncio.get_running_loop(), 0
        # Time that other programs take makes no block a long one.
        monkeypatch.setattr(loop, "time", time.thread_time)
        turns = DecodingTurns(loop)
        for _ in range(100):
            while not turns.take():
                turn_count += 1
                await asyncio.sleep(0)
        return turn_count

    assert asyncio.run(scenario()) < 300
