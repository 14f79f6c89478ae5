"""Ensembles against a plain model: a graph of sums, whose steps answer in any order, or fail."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from protocol.errors import Cancelled, Internal, ServingError
from protocol.infer import InferResponse
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


def bench_of(graph, **more):
    """Return an ensemble of a graph, all of whose tensors are outputs."""
    models, steps = [], []
    for number, sources in enumerate(graph):
        models.append(model(f"m{number}", " ".join(f"I{place}" for place in range(len(sources))), "Y"))
        taken = " ".join(f"I{place}={tensor_name(source)}" for place, source in enumerate(sources))
        steps.append(step(f"m{number}", taken, f"Y=t{number}"))
    config = ensemble("x", " ".join(f"t{number}" for number in range(len(graph))), *steps)
    config.ensemble_scheduling.MergeFrom(ModelEnsembling(**more))
    return Bench(config, *models)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.data())
def test_steps_run_as_soon_as_they_can_and_only_if_they_must(graph, data):
    every = list(range(len(graph)))
    bench = bench_of(graph)
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


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "answer", "answer", "cancel", "fail"]), st.integers(0, 9))
)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.integers(0, 2), OPERATIONS, st.booleans(), st.booleans())
def test_every_request_is_answered_once_whatever_is_cancelled_and_when_the_server_stops(
    graph, limit, operations, at_once, abandoned
):
    bench = bench_of(graph, max_inflight_requests=limit)
    router, sent = bench.router, []

    def end(place, result):
        _, _, request = router.steps.pop(place % len(router.steps))
        request.reply(request, result)

    def hear(request):
        places = [place for place, (_, _, each) in enumerate(router.steps) if each is request]
        if at_once and places:  # as a sequence that waits does
            end(places[0], Cancelled(""))

    router.when_cancelled = hear
    for what, number in operations:
        if what == "send":
            sent.append(bench.submit(str(len(sent)), inputs={"x": np.ones((1, 2), np.float32)}))
        elif what == "cancel" and sent:
            bench.scheduler.cancel(sent[number % len(sent)])
        elif router.steps and what in ("answer", "fail"):
            end(number, Internal("no") if what == "fail" else InferResponse({"Y": np.ones((1, 2), np.float32)}))
        bench.clock.run()
    drained = []
    bench.scheduler.drain(lambda: drained.append(True))
    if abandoned:
        bench.scheduler.abandon()
    bench.clock.run()
    while router.steps:
        end(0, InferResponse({"Y": np.ones((1, 2), np.float32)}))
        bench.clock.run()
    assert sorted(bench.answers.order) == sorted(request.id for request in sent) and drained
    counts = bench.statistics.counts
    assert counts.success_count + counts.other_count == len(sent)
