"""Which ensembles an ingress hosts too."""

from dataclasses import replace

import pytest

from repository_loader.copied_ensembles import copied_ensembles
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan, prune
from tests.repository_loader.planned_models import CPUS, GPUS, ISOLATED, ONNX, ensemble, model, parameter, snapshot

PACKED = PlanSettings(placement="packed")


def copied(settings: PlanSettings, more: str = "", steps: str = "") -> list[str]:
    models = snapshot(model("a", ONNX + steps), model("b", ONNX + steps), ensemble("e", "a", "b", more=more))
    return [each.name for each in copied_ensembles(make_plan(models, settings, CPUS))]


def test_an_ensemble_whose_steps_run_elsewhere_is_copied() -> None:
    assert copied(ISOLATED) == ["e"]
    assert copied(PACKED, steps=parameter("placement", "isolated")) == ["e"]
    assert copied(ISOLATED, parameter("traffic", "1=100")) == ["e"]


def test_an_ensemble_beside_one_of_its_steps_is_not() -> None:
    assert copied(PACKED) == []
    models = snapshot(model("a", ONNX), model("b", ONNX, gpu_count=2), ensemble("e", "a", "b"))
    plan = make_plan(models, PACKED, GPUS)
    assert {each.placement for each in plan.deployments} == {"isolated", "packed"}
    assert list(copied_ensembles(plan)) == []


def test_an_embedded_ensemble_is_no_copy() -> None:
    assert copied(PlanSettings(placement="embedded")) == []


@pytest.mark.parametrize(
    "more",
    [
        parameter("placement", "isolated"),
        parameter("replicas", "2"),
        parameter("num_cpus", "1"),
        parameter("autoscaling.max_replicas", "3"),
    ],
)
def test_an_ensemble_with_something_of_its_own_is_not(more: str) -> None:
    assert copied(ISOLATED, more) == []


def test_an_ensemble_with_a_bound_of_its_own_is_not() -> None:
    bounded = ensemble("e", "a")
    assert bounded.config is not None
    for limit, expected in ((0, ["e"]), (4, [])):
        bounded.config.ensemble_scheduling.max_inflight_requests = limit
        plan = make_plan(snapshot(model("a", ONNX), bounded), ISOLATED, CPUS)
        assert [each.name for each in copied_ensembles(plan)] == expected


def test_an_ensemble_with_a_step_that_just_the_ingress_reaches_is_copied_whatever_it_has() -> None:
    """As one is embedded that is placed beside it; this one was placed before."""
    models = snapshot(model("a", ONNX), model("b", ONNX), ensemble("e", "a", "b", more=parameter("replicas", "2")))
    plan = make_plan(models, PACKED, CPUS)
    assert list(copied_ensembles(plan)) == []
    (step,) = (each for deployment in plan.deployments for each in deployment.models if each.name == "b")
    left = prune(plan, lambda each: each.name != "b")
    assert [each.name for each in copied_ensembles(replace(left, embedded=(step,)))] == ["e"]
    moving = replace(plan, embedded=(replace(step, leaving=True),))
    assert [each.name for each in copied_ensembles(moving)] == ["e"], "until its step is ready elsewhere"
    (packed,) = (each for each in plan.deployments if step in each.models)
    there = tuple(replace(each, leaving=each.name == "b") for each in packed.models)
    others = tuple(each for each in plan.deployments if each is not packed)
    moving = replace(plan, deployments=(*others, replace(packed, models=there)), embedded=(step,))
    assert list(copied_ensembles(moving)) == []
