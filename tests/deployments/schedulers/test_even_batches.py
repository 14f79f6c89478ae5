"""Clients that come back while a GPU runs the others' batch end up in two groups of equal size."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.even_batches import EvenBatches
from deployments.schedulers.fifo import FifoBatcher
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakeClock, FakePool, config_of, reasons_of

SIZES = (1, 4, 8, 16, 24, 32, 48, 64)


def up(rows):
    return next((size for size in SIZES if size >= rows), rows)


class Bench:
    """A batcher whose instances take two milliseconds; who is answered sends the next request."""

    def __init__(self, *, on_gpu=True, instance_count=1, filled=None, max_rows=64):
        self.clock, self.answers = FakeClock(), Answers()
        self.pool = FakePool(self.clock, instance_count)
        self.pool.on_gpu = on_gpu
        self.pool.filled = filled or self.pool.filled
        signature = Signature.from_config(config_of(f"max_batch_size: {max_rows}"))
        self.statistics = ModelStatistics("m", 1, Totals())
        self.scheduler = FifoBatcher(signature, self.pool, self.statistics, self.clock)
        self.answered = 0

    def come(self, count, rows=1):
        for _ in range(count):
            request = self.answers.request("", rows)
            request.reply = self._reply
            self.scheduler.submit(request)
        self.clock.run()

    def _reply(self, request, result):
        self.answered += 1

    def run(self, come_back=True):
        """Finish what runs; its clients come back before the next ends. Returns how many rows run then."""
        self.clock.advance(2.0)
        before = self.answered
        rows = self.pool.running[0].rows
        self.pool.finish()
        count = self.answered - before
        if come_back:
            self.come(count, rows // count)
        return [batch.rows for batch in self.pool.running]


def groups(first, second, rounds=4, **options):
    bench = Bench(**options)
    bench.come(first)
    bench.come(second)
    return [bench.run()[0] for _ in range(rounds)]


def test_groups_of_any_two_sizes_become_equal():
    assert groups(1, 15, rounds=7) == [15, 1, 15, 1, 8, 8, 8]
    assert groups(13, 3, rounds=7) == [3, 13, 3, 8, 8, 8, 8]
    assert groups(2, 15, rounds=7) == [15, 2, 15, 2, 9, 8, 9]


@given(first=st.integers(1, 64), second=st.integers(1, 64))
def test_groups_that_are_equal_stay_so_and_all_are_asked_in_turn(first, second):
    bench = Bench()
    bench.come(first)
    bench.come(second)
    for _ in range(6):
        bench.run()
    sizes = [bench.run()[0] for _ in range(6)]
    assert max(sizes) - min(sizes) <= 1 and abs(sum(sizes) - 3 * (first + second)) <= 3


def test_rows_are_counted_and_a_request_is_never_divided():
    bench = Bench(max_rows=16)
    bench.come(1, rows=4)
    bench.come(3, rows=4)
    assert [bench.run()[0] for _ in range(6)] == [12, 4, 12, 4, 8, 8]
    bench = Bench(max_rows=16)
    bench.come(1, rows=1)
    bench.come(1, rows=15)
    assert [bench.run()[0] for _ in range(6)] == [15, 1] * 3


def test_a_batch_that_would_be_filled_up_to_the_same_size_stays_whole():
    assert groups(4, 16, rounds=6, filled=up) == [16, 4] * 3
    assert groups(1, 15, rounds=6, filled=up) == [15, 1, 15, 1, 8, 8]


def test_all_go_together_that_no_others_have_just_run_beside():
    bench = Bench()
    bench.come(1)
    bench.come(60)
    assert bench.run(come_back=False) == [60]
    bench.come(10)
    assert bench.run(come_back=False) == [10]
    bench.come(30)
    assert bench.run(come_back=False) == [30]


@given(counts=st.lists(st.integers(1, 40), min_size=8, max_size=8))
def test_who_comes_at_random_is_not_divided(counts):
    totals = [sum(pair) for pair in pairwise(counts)]
    assume(any(16 * abs(one - other) > other for one, other in pairwise(totals[:4])))
    bench = Bench()
    bench.come(counts[0])
    for count in counts[1:5]:
        bench.come(count)
        assert bench.run(come_back=False) == [count]


def test_what_comes_while_nothing_runs_shares_a_batch():
    bench = Bench()
    bench.come(1)
    for _ in range(5):
        assert bench.run(come_back=False) == []
        bench.come(5)
        assert [batch.rows for batch in bench.pool.running] == [5]


def test_more_than_fit_twice_leave_in_full_batches():
    assert groups(4, 20, rounds=6, max_rows=4) == [4] * 6


@pytest.mark.parametrize("options", [{"on_gpu": False}, {"instance_count": 2}])
def test_only_the_one_instance_of_a_gpu_has_even_batches(options):
    bench = Bench(**options)
    assert bench.scheduler._even is None
    if options.get("instance_count") != 2:
        bench.come(1)
        bench.come(15)
        assert [bench.run()[0] for _ in range(6)] == [15, 1] * 3


def test_why_they_left():
    bench = Bench(max_rows=15)
    bench.come(1)
    bench.come(15)
    for _ in range(8):
        bench.run()
    assert reasons_of(bench.statistics) == {"none_waits": 5, "full": 2, "next_differs": 1}


@given(numbers=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200)), max_size=20))
def test_a_share_is_less_than_what_waits_and_at_least_as_much_as_ran(numbers):
    even = EvenBatches(lambda rows: rows)
    for ended, waiting in numbers:
        share = even.share(ended, waiting)
        assert share == 0 or ended < share < waiting
