import random

import pytest

from deployments.core.inline_gate import FIRST_PENALTY, LAST_PENALTY, InlineGate

US = 1000
MS = 1000 * US


def thread_runs_until_inline(gate, duration_ns=50 * US):
    """Run in the thread until the gate opens, and return how many runs that took."""
    count = 0
    while not gate.allows(1):
        gate.ran_in_thread(1, duration_ns)
        count += 1
        assert count <= LAST_PENALTY
    return count


def test_first_run_of_a_size_is_not_inline():
    gate = InlineGate()
    assert not gate.allows(1)
    gate.ran_in_thread(1, 50 * US)
    assert gate.allows(1)


def test_sizes_are_powers_of_two():
    gate = InlineGate()
    gate.ran_in_thread(3, 50 * US)
    assert gate.allows(4) and not gate.allows(2) and not gate.allows(5)


def test_size_whose_mean_becomes_slow_closes_the_gate_and_opens_it_when_it_is_quick_again():
    gate = InlineGate()
    gate.ran_in_thread(1, 50 * US)
    for _ in range(50):
        gate.ran_inline(1, 2 * MS)
    assert not gate.allows(1)
    assert 1 <= thread_runs_until_inline(gate) <= 4


def test_each_stall_sends_a_size_to_the_thread_for_twice_as_long():
    gate = InlineGate()
    gate.ran_in_thread(1, 50 * US)
    penalties = []
    for _ in range(9):
        gate.ran_inline(1, 50 * MS)
        penalties.append(thread_runs_until_inline(gate))
    assert penalties == [FIRST_PENALTY << min(index, 6) for index in range(9)]
    assert penalties[-1] == LAST_PENALTY


def test_slow_run_in_the_thread_starts_the_count_anew():
    gate = InlineGate()
    gate.ran_in_thread(1, 50 * US)
    gate.ran_inline(1, 50 * MS)
    for _ in range(FIRST_PENALTY - 1):
        gate.ran_in_thread(1, 50 * US)
    gate.ran_in_thread(1, 50 * MS)
    assert thread_runs_until_inline(gate) >= FIRST_PENALTY


@pytest.mark.parametrize(("share", "most"), [(0.05, 2), (0.01, 4)], ids=["one in twenty", "one in a hundred"])
def test_inputs_that_are_slow_now_and_then_stall_the_loop_a_few_times_only(share, most):
    dice = random.Random(7)
    gate = InlineGate()
    stalls = 0
    for _ in range(20_000):
        duration_ns = 50 * MS if dice.random() < share else 50 * US
        if gate.allows(1):
            gate.ran_inline(1, duration_ns)
            stalls += duration_ns == 50 * MS
        else:
            gate.ran_in_thread(1, duration_ns)
    assert 1 <= stalls <= most
