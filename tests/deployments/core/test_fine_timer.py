"""Delays below a millisecond, on a real loop."""

import asyncio
import time

import pytest

from deployments.core.clock import LoopClock
from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.dynamic import DynamicBatcher
from protocol.errors import Internal
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakePool, config_of

TRIES = 300


@pytest.mark.parametrize("delay_us", [100, 250, 700])
def test_a_short_delay_is_kept(delay_us):
    async def once(clock):
        done = asyncio.get_running_loop().create_future()
        began_ns = time.monotonic_ns()
        clock.call_later(delay_us / 1e6, lambda: done.set_result(time.monotonic_ns() - began_ns))
        return await done / 1000

    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        return [await once(clock) for _ in range(TRIES)]

    took_us = min(asyncio.run(run()))  # whoever else runs on this machine makes some of them longer
    assert delay_us <= took_us < delay_us + 250  # the loop's own timers take 1,000 and more


def test_calls_come_in_the_order_of_their_times_and_not_when_cancelled():
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        came = []
        done = asyncio.get_running_loop().create_future()
        clock.call_later(0.003, lambda: came.append(3))
        clock.call_later(0.001, lambda: came.append(1))
        clock.call_later(0.002, lambda: came.append(2)).cancel()
        clock.call_later(0.0, lambda: came.append(0))
        clock.call_later(0.004, lambda: done.set_result(None))
        clock.call_later(0.02, lambda: came.append(20)).cancel()
        await done
        return came

    assert asyncio.run(run()) == [0, 1, 3]


def test_a_call_that_fails_stops_no_other(caplog):
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        done = asyncio.get_running_loop().create_future()
        clock.call_later(0.0001, lambda: 1 / 0)
        clock.call_later(0.0002, lambda: done.set_result(None))
        await asyncio.wait_for(done, 5)

    asyncio.run(run())
    assert "a timer's call failed" in caplog.text


class FailingPool(FakePool):
    """Fails every batch at once, and notes how long its first request has waited."""

    waited_ns: list[int]

    def run(self, batch):
        batch.start_ns = batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = self.clock.now_ns()
        self.waited_ns.append(batch.start_ns - batch.requests[0].queued_ns)
        batch.results = [Internal("no")] * len(batch.requests)
        self.finished(batch)


def test_a_batch_waits_for_less_than_a_millisecond_if_its_model_says_so():
    async def run():
        config = config_of("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 300 }")
        clock = LoopClock(asyncio.get_running_loop())
        pool = FailingPool(clock)
        pool.waited_ns = []
        statistics = ModelStatistics("m", 1, Totals())
        batcher = DynamicBatcher(config.dynamic_batching, Signature.from_config(config), pool, statistics, clock)
        for number in range(TRIES):
            done = asyncio.get_running_loop().create_future()
            request = Answers().request(f"{number}")
            request.reply = lambda request, result, done=done: done.set_result(None)
            batcher.submit(request)
            await asyncio.wait_for(done, 5)
        return min(pool.waited_ns)

    assert 300_000 <= asyncio.run(run()) < 600_000
