from protocol.trace import TIMESTAMPS, new_trace


def test_a_child_has_a_greater_id_than_its_parent() -> None:
    for _ in range(100):
        chain = [new_trace(TIMESTAMPS)]
        for _ in range(100):
            chain.append(chain[-1].child())
        ids = [each.id for each in chain]
        assert ids == sorted(set(ids)) and ids[-1] < 1 << 53, "a double keeps them"


def test_the_children_of_one_trace_have_different_ids() -> None:
    trace = new_trace(TIMESTAMPS)
    assert len({trace.child().id for _ in range(1000)}) == 1000
