"""The response cache in front of a scheduler against a plain model: a set of what was answered, and a list of the rest."""

import secrets

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.cached import CachedScheduler
from deployments.schedulers.default import DefaultScheduler
from protocol.errors import Internal
from tests.deployments.fakes import Answers, FakeClock, FakePool, response_cache

CACHE = response_cache()

OPERATION = st.one_of(
    # What is asked: the content, a parameter, and whether it is within a sequence.
    st.tuples(st.just("send"), st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from([0, 0, 0, 7]))),
    st.tuples(st.just("finish"), st.booleans()),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATION, max_size=40))
def test_a_request_runs_unless_one_like_it_was_answered_before(operations):
    clock = FakeClock()
    pool = FakePool(clock)
    statistics = ModelStatistics("m", 1, Totals())
    inner = DefaultScheduler(pool, statistics, clock)
    scheduler = CachedScheduler(inner, CACHE.of(secrets.token_hex()), statistics, clock)
    answers = Answers()
    asked, kept, waiting, hits, failed = {}, set(), [], 0, set()

    def finish(fails):
        name = waiting.pop(0)
        assert [request.id for batch in pool.running for request in batch.requests] == [name]
        pool.finish(error=Internal("no") if fails else None)
        if fails:
            failed.add(name)
        elif not asked[name][2]:
            kept.add(asked[name])

    for number, (what, argument) in enumerate(operations):
        if what == "send":
            name = str(number)
            content, parameter, sequence_id = asked[name] = argument
            if argument in kept:
                hits += 1
            else:
                waiting.append(name)
            x = np.full((1, 2), content, np.float32)
            scheduler.submit(
                answers.request(name, inputs={"X": x}, parameters={"p": parameter}, sequence_id=sequence_id)
            )
            clock.run()
            assert (name in answers.results) == (argument in kept)
        elif waiting:
            finish(argument)
    while waiting:
        finish(False)
    for name, (content, _, _) in asked.items():
        if name in failed:
            assert answers.error(name) == "Internal: no"
        else:
            assert answers.results[name].outputs["X"].tolist() == [[content, content]]
    counts = statistics.counts
    assert counts.cache_hit_count == hits
    assert counts.cache_miss_count == sum(not each[2] for each in asked.values()) - hits - sum(
        not asked[name][2] for name in failed
    )
    assert counts.success_count + counts.backend_count == len(asked) == len(answers.order)
    assert counts.execution_count == len(asked) - hits - len(failed)
