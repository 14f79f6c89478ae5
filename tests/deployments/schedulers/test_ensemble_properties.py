"""Ensembles against a plain model: a graph of sums, whose steps answer in any order, or fail."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Internal, ServingError
from tests.deployments.schedulers.test_ensemble import Bench, ensemble, model, step


@st.composite
def graphs(draw):
    """Return for each step the tensors that it adds up: `x`, or what an earlier step has made."""
    return [
        draw(st.lists(st.integers(-1, number - 1), min_size=1, max_size=3, unique=True))
        for number in range(draw(st.integers(1, 6)))
    ]


def tensor_name(number):
    return "x" if number < 0 else f"t{number}"


def needed(graph, outputs):
    """Return the steps on which outputs depend."""
    found, left = set(), list(outputs)
    while left:
        number = left.pop()
        if number >= 0 and number not in found:
            found.add(number)
            left += graph[number]
    return found


@settings(max_examples=200, deadline=None)
@given(graphs(), st.data())
def test_steps_run_as_soon_as_they_can_and_only_if_they_must(graph, data):
    count = len(graph)
    models, steps = [], []
    for number, sources in enumerate(graph):
        models.append(model(f"m{number}", " ".join(f"I{place}" for place in range(len(sources))), "Y"))
        taken = " ".join(f"I{place}={tensor_name(source)}" for place, source in enumerate(sources))
        steps.append(step(f"m{number}", taken, f"Y=t{number}"))
    every = list(range(count))
    bench = Bench(ensemble("x", " ".join(f"t{number}" for number in every), *steps), *models)
    wanted = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    fails = data.draw(st.sampled_from([None, None, *every]))
    values = {-1: 1.0}
    must = needed(graph, wanted)
    bench.submit(inputs={"x": np.full((1, 2), 1, np.float32)}, outputs=tuple(f"t{number}" for number in wanted))
    bench.clock.run()
    failed = False
    answered = set()
    while not failed and "r" not in bench.answers.results:
        running = {int(name[1:]) for name in bench.router.names}
        ready = {number for number in must - answered if all(source in values for source in graph[number])}
        assert running == ready
        number = data.draw(st.sampled_from(sorted(running)))
        request = next(each for name, _, each in bench.router.steps if name == f"m{number}")
        given_sum = sum(float(array[0, 0]) for array in request.inputs.values())
        assert given_sum == sum(values[source] for source in graph[number])
        answered.add(number)
        if number == fails:
            failed = True
            bench.router.fail(f"m{number}", Internal("no"))
        else:
            values[number] = given_sum + number
            bench.router.answer(f"m{number}", Y=np.full((1, 2), values[number], np.float32))
        bench.clock.run()
    under_way = set(bench.router.names)
    result = bench.answers.results.get("r")
    while bench.router.names:  # steps that ran beside the one that failed
        bench.router.answer(bench.router.names[0], Y=np.zeros((1, 2), np.float32))
        bench.clock.run()
        assert not set(bench.router.names) - under_way, "a step began after the failure"
    result = result or bench.answers.results["r"]
    assert bench.answers.order == ["r"]
    counts = bench.statistics.counts
    if failed:
        assert isinstance(result, ServingError) and "no" in result.message and f"'m{fails}'" in result.message
        assert (counts.success_count, counts.other_count) == (0, 1)
    else:
        outputs = {name: float(array[0, 0]) for name, array in result.outputs.items()}
        assert outputs == {f"t{number}": values[number] for number in wanted}
        assert (counts.success_count, counts.other_count) == (1, 0)
