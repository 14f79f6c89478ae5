"""What `auto` does with models for which the cluster has no room left."""

import time
from dataclasses import replace

import pytest

from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import Plan, PlanSettings
from repository_loader.plan import make_plan, prune
from tests.repository_loader.planned_models import ISOLATED, ONNX, PYTHON, model, parameter, snapshot

CORE = ClusterFacts((NodeFacts(num_cpus=1),))
SETTINGS = PlanSettings(num_cpus_per_replica=0.25)
NO_ROOM = "its code is Python, but the cluster has no room for a replica more"


def places(plan: Plan) -> dict[str, str]:
    return {planned.name: planned.placement for planned in plan.models}


def test_python_models_that_find_no_cpus_are_packed() -> None:
    plan = make_plan(snapshot(*(model(f"m{number}", PYTHON) for number in range(5))), SETTINGS, CORE)
    assert places(plan) == {f"m{number}": "isolated" if number < 3 else "packed" for number in range(5)}
    (packed,) = (each for each in plan.deployments if each.placement == "packed")
    assert {each.why for each in packed.models} == {NO_ROOM}
    assert all(spec.own_process for each in packed.models for spec in each.specs)
    assert not plan.unplaced


def test_a_model_on_a_gpu_finds_cpus_wherever_its_name_stands() -> None:
    on_gpu = model("z", PYTHON + "instance_group { kind: KIND_GPU }", gpu_count=1)
    models = snapshot(*(model(f"m{number}", PYTHON) for number in range(5)), on_gpu)
    plan = make_plan(models, SETTINGS, ClusterFacts((NodeFacts(num_cpus=1, num_gpus=1),)))
    assert not plan.unplaced
    assert [name for name, placement in places(plan).items() if placement == "isolated"] == ["m0", "m1", "z"]


def test_python_models_leave_half_of_the_memory() -> None:
    facts = ClusterFacts((NodeFacts(num_cpus=64, memory_bytes=1 << 30),))
    plan = make_plan(snapshot(*(model(f"m{number}", PYTHON) for number in range(8))), PlanSettings(), facts)
    assert [*places(plan).values()].count("isolated") == 5


def test_each_replica_of_a_model_counts_as_one_that_takes_memory() -> None:
    facts = ClusterFacts((NodeFacts(num_cpus=64, memory_bytes=1 << 30),))
    models = snapshot(model("a", PYTHON + parameter("replicas", "3")), *(model(f"m{n}", PYTHON) for n in range(4)))
    assert [*places(make_plan(models, PlanSettings(), facts)).values()].count("isolated") == 3


def test_packed_models_have_cpus_left_whichever_comes_first() -> None:
    models = snapshot(*(model(f"m{number}", PYTHON) for number in range(4)), model("small", ONNX))
    assert places(make_plan(models, SETTINGS, CORE)) == {
        **{f"m{number}": "isolated" for number in range(3)},
        "m3": "packed",
        "small": "packed",
    }


def test_what_is_placed_stays_where_it_is_when_there_are_cpus_again() -> None:
    models = [model(f"m{number}", PYTHON) for number in range(4)]
    before = prune(make_plan(snapshot(*models), SETTINGS, CORE), lambda planned: planned.name != "m0")
    plan = make_plan(snapshot(*models[1:], model("new", PYTHON)), SETTINGS, CORE, kept=before)
    assert places(plan) == {"m1": "isolated", "m2": "isolated", "m3": "packed", "new": "isolated"}


@pytest.mark.parametrize(
    "more", [parameter("replicas", "1"), parameter("placement", "isolated"), parameter("memory_bytes", "1000")]
)
def test_what_is_to_be_alone_waits_for_cpus(more: str) -> None:
    models = snapshot(*(model(f"m{number}", PYTHON) for number in range(3)), model("z", PYTHON + more))
    plan = make_plan(models, SETTINGS, ClusterFacts((NodeFacts(num_cpus=0.75),)))
    assert places(plan) == {"m0": "isolated", "m1": "isolated", "m2": "packed"}
    assert plan.unplaced == {"z": "model 'z' needs 0.25 CPUs and the cluster has 0 free"}


def test_packed_models_wait_too_where_others_have_taken_all() -> None:
    models = snapshot(*(model(f"m{number}", ONNX) for number in range(20)), model("z", ONNX + PACKED))
    plan = make_plan(models, ISOLATED, CORE)
    assert plan.unplaced == {"z": "model 'z' needs 0.05 CPUs and the cluster has 0 free"}


def test_cpus_that_a_packed_model_asked_for_are_free_when_it_has_gone() -> None:
    asking, waits = model("asking", ONNX + PACKED + parameter("num_cpus", "0.75")), model("z", ONNX + REPLICA)
    others = [model("m", ONNX), waits]
    facts = ClusterFacts((NodeFacts(num_cpus=0.75),))
    full = make_plan(snapshot(asking, *others), SETTINGS, facts)
    assert [*full.unplaced] == ["z"]
    kept = prune(full, lambda planned: planned.name != "asking")
    assert make_plan(snapshot(*others), SETTINGS, facts, kept=kept).unplaced == {}


def test_cpus_that_a_packed_model_has_asked_for_stay_taken_while_it_is_kept() -> None:
    facts = ClusterFacts((NodeFacts(num_cpus=0.75),))
    kept = make_plan(snapshot(model("asking", ONNX + PACKED + parameter("num_cpus", "0.75"))), SETTINGS, facts)
    plan = make_plan(snapshot(model("z", ONNX + REPLICA)), SETTINGS, facts, kept=kept)
    assert plan.unplaced == {"z": "model 'z' needs 0.25 CPUs and the cluster has 0 free"}


def test_what_is_kept_for_packed_models_without_any_has_its_cpus() -> None:
    models = snapshot(*(model(f"m{number}", PYTHON + REPLICA) for number in range(4)))
    plan = make_plan(models, replace(SETTINGS, keep_packed=True), CORE)
    assert plan.unplaced == {"m3": "model 'm3' needs 0.25 CPUs and the cluster has 0 free"}
    assert sum(each.num_cpus for each in plan.deployments) == 1


def test_a_thousand_packed_models_that_say_what_they_take_are_placed_in_a_moment() -> None:
    models = snapshot(*(model(f"m{number}", ONNX + parameter("memory_bytes", "1000")) for number in range(1000)))
    start_s = time.process_time()
    assert not make_plan(models, SETTINGS, CORE).unplaced
    assert time.process_time() - start_s < 3  # of which it takes 0.05; each for all before it, it took 14


PACKED, REPLICA = parameter("placement", "packed"), parameter("replicas", "1")
