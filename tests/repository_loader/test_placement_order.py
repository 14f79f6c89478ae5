"""Who comes first has the room that there is."""

from repository_loader.deployment_plan import Plan, PlanSettings
from repository_loader.placement_order import placement_order
from repository_loader.plan import make_plan
from repository_loader.snapshot import RepositoryModel
from tests.repository_loader.planned_models import CPUS, GPUS, ISOLATED, ONNX, PYTHON, ensemble, model, snapshot

ON_BOTH = "instance_group { kind: KIND_GPU } instance_group { kind: KIND_CPU }"


def order(*models: RepositoryModel, former: Plan | None = None) -> list[str]:
    return [each.name for each in placement_order(snapshot(*models).models, former or Plan(), GPUS.num_gpus)]


def test_what_was_isolated_as_a_whole_comes_before_what_was_in_part() -> None:
    packed, whole = model("b", ONNX), model("z", PYTHON)
    former = make_plan(snapshot(model("a", PYTHON), packed, whole), PlanSettings(), CPUS)
    grown = model("a", PYTHON, versions=(1, 2))
    assert order(grown, packed, model("m", PYTHON), whole, former=former) == ["z", "a", "b", "m"]


def test_a_model_on_a_gpu_too_comes_before_those_on_the_cpu_alone() -> None:
    assert order(model("a", ONNX), model("z", ONNX + ON_BOTH, gpu_count=2)) == ["z", "a"]


def test_an_ensemble_that_was_isolated_comes_after_its_steps() -> None:
    models = ensemble("a", "z"), model("z", ONNX)
    former = make_plan(snapshot(*models), ISOLATED, CPUS)
    assert {planned.placement for planned in former.models} == {"isolated"}
    new = ensemble("a", "y", "z"), model("y", ONNX), model("z", ONNX)
    assert order(*new, former=former) == ["z", "y", "a"]
