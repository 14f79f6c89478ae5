"""GPUs in plans: which model has which card, and what share of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.demand import demand
from repository_loader.deployment_plan import PlanSettings
from repository_loader.node_needs import NodeNeeds
from repository_loader.plan import make_plan
from repository_loader.snapshot import RepositoryModel
from tests.deployments.backends.onnx_models import write_model
from tests.repository_loader.planned_models import (
    CPUS,
    GIB,
    GPUS,
    ISOLATED,
    MIXED,
    ONNX,
    PYTHON,
    model,
    only,
    parameter,
    snapshot,
)


@pytest.mark.parametrize(
    ("groups", "deployments"),
    {
        "all GPUs": ("{ count: 2 }", [("v1-gpu0", 0, ("m_0_0", "m_0_1")), ("v1-gpu1", 1, ("m_0_0", "m_0_1"))]),
        "one each": ("[ { gpus: 1 }, { gpus: 0 } ]", [("v1-gpu0", 0, ("m_1_0",)), ("v1-gpu1", 1, ("m_0_0",))]),
        "one has more": (
            "[ { gpus: [0, 1] }, { gpus: 0 } ]",
            [("v1-gpu0", 0, ("m_0_0", "m_1_0")), ("v1-gpu1", 1, ("m_0_0",))],
        ),
        "one": ("{ gpus: 1 }", [("v1", 1, ("m_0_0",))]),
        "both kinds of device": (
            "[ { kind: KIND_GPU gpus: 1 count: 1 }, { kind: KIND_CPU count: 2 } ]",
            [("v1-cpu", None, ("m_1_0", "m_1_1")), ("v1-gpu1", 1, ("m_0_0",))],
        ),
    }.values(),
)
def test_each_gpu_has_a_deployment_of_its_own(
    groups: str, deployments: list[tuple[str, int | None, tuple[str, ...]]]
) -> None:
    plan = make_plan(snapshot(model("m", ONNX + f"instance_group {groups}", gpu_count=2)), ISOLATED, GPUS)
    names = [(d.name, d.gpu, tuple(spec.name for spec in d.models[0].specs)) for d in plan.deployments]
    assert names == deployments
    for deployment in plan.deployments:
        assert deployment.replica_count == 1
        assert (deployment.num_gpus > 0) == (deployment.gpu is not None) == (not deployment.spill)


def test_a_gpu_is_not_promised_twice() -> None:
    most = parameter("memory_bytes", str(12 * GIB))
    first, second = (model(name, ONNX + "instance_group { gpus: 0 }" + most, gpu_count=2) for name in ("a", "b"))
    other = model("c", ONNX + "instance_group { gpus: 1 }" + most, gpu_count=2)
    chooses = model("d", 'backend: "pytorch" instance_group { kind: KIND_MODEL }', gpu_count=2)
    plan = make_plan(snapshot(first, second, other, chooses), ISOLATED, GPUS)
    assert {d.app_name: (d.gpu, d.num_gpus) for d in plan.deployments} == {
        "a": (0, 0.94),
        "c": (1, 0.94),
        "d": (0, 0.04),
    }
    assert plan.unplaced == {"b": "model 'b' needs 0.94 of GPU 0, of which 0.06 is free"}


def test_what_scales_needs_a_card_that_nothing_else_is_on() -> None:
    """Ray finds the places of its replicas, and has none on a card that is reserved."""
    one = ClusterFacts((NodeFacts(8, 1, gpu_memory_bytes=16 * GIB),))
    half = "instance_group { kind: KIND_GPU }" + parameter("num_gpus", "0.5")
    fixed = model("fixed", ONNX + half, gpu_count=1)
    scales = model("scales", ONNX + half + parameter("autoscaling.max_replicas", "2"), gpu_count=1)
    assert make_plan(snapshot(scales), ISOLATED, one).unplaced == {}
    plan = make_plan(snapshot(fixed, scales), ISOLATED, one)
    assert [each.app_name for each in plan.deployments] == ["fixed"]
    assert plan.unplaced == {"scales": "model 'scales' needs a GPU for itself as it scales, of which 0 are free"}


def test_what_is_placed_stays_when_the_cluster_grows() -> None:
    models = snapshot(model("on-cpu", ONNX), model("waits", ONNX + "instance_group { kind: KIND_GPU gpus: 0 }"))
    before = make_plan(models, PlanSettings(), CPUS)
    assert list(before.unplaced) == ["waits"]
    grown = ClusterFacts((*CPUS.nodes, NodeFacts(4, 1)))
    after = make_plan(
        snapshot(model("on-cpu", ONNX, gpu_count=1), model("waits", ONNX, gpu_count=1)), PlanSettings(), grown, before
    )
    assert [(d.app_name, d.gpu) for d in after.deployments] == [("eagleray-packed", None), ("waits", 0)]
    assert after.deployments[0] == before.deployments[0]
    assert after.unplaced == {}


def test_replicas_are_divided_among_the_gpus() -> None:
    text = ONNX + parameter("replicas", "3")
    plan = make_plan(snapshot(model("m", text, gpu_count=2)), ISOLATED, GPUS)
    assert [(d.gpu, d.replica_count) for d in plan.deployments] == [(0, 2), (1, 1)]
    one = make_plan(snapshot(model("m", ONNX + parameter("replicas", "1"), gpu_count=2)), ISOLATED, GPUS)
    assert [(d.gpu, d.replica_count) for d in one.deployments] == [(0, 1)]


# A fifth of a card's 16 GiB stays free, so that 12.8 GiB are the whole of it.


SHARES = {
    "least": (0, 1, 0.01),
    "rounded up": (12.8 * GIB * 0.211, 1, 0.22),
    "exact": (12.8 * GIB * 0.25, 1, 0.25),
    "whole": (12.8 * GIB * 0.995, 1, 1.0),
    "of the headroom": (15 * GIB, 1, 1.0),
    "two instances": (12.8 * GIB * 0.2, 2, 0.4),
    "three instances": (12.8 * GIB * 0.5, 3, 1.0),
}


@pytest.mark.parametrize(("memory_bytes", "count", "share"), SHARES.values(), ids=SHARES)
def test_takes_a_share_of_the_gpu(memory_bytes: float, count: int, share: float) -> None:
    text = f"{PYTHON} instance_group {{ count: {count} gpus: 0 }} {parameter('memory_bytes', str(int(memory_bytes)))}"
    deployment = only(make_plan(snapshot(model("m", text, gpu_count=1)), ISOLATED, GPUS))
    assert (deployment.num_gpus, deployment.replica_count) == (share, 1)


@pytest.mark.parametrize(("headroom", "share"), [(0.0, 0.5), (0.2, 0.63), (0.3, 0.72)])
def test_part_of_a_card_stays_free(headroom: float, share: float) -> None:
    text = ONNX + parameter("memory_bytes", str(8 * GIB))
    settings = PlanSettings(placement="isolated", gpu_headroom=headroom)
    assert only(make_plan(snapshot(model("m", text, gpu_count=1)), settings, GPUS)).num_gpus == share


def test_needs_of_nodes_reach_the_deployments() -> None:
    text = ONNX + parameter("accelerator_type", "A100") + parameter("node_labels", "zone = b,")
    plan = make_plan(
        snapshot(
            model("m", text, gpu_count=3),
            model("c", ONNX + "instance_group { kind: KIND_CPU }" + parameter("node_labels", "zone=a")),
        ),
        ISOLATED,
        MIXED,
    )
    assert plan.unplaced == {}
    needs = NodeNeeds("A100", (("zone", "b"),))
    assert [(d.app_name, d.gpu, d.needs) for d in plan.deployments] == [
        ("c", None, NodeNeeds("", (("zone", "a"),))),
        ("m", 0, needs),  # the type has two cards, so that the model has two parts
        ("m", 1, needs),
    ]


def test_a_card_belongs_to_one_kind_of_node() -> None:
    chooses = 'backend: "pytorch" instance_group { kind: KIND_MODEL } '
    first = model("a", chooses + parameter("accelerator_type", "A100"), gpu_count=3)
    second = model("b", chooses + parameter("accelerator_type", "L4"), gpu_count=3)
    third = model("c", ONNX + "instance_group { gpus: 0 }", gpu_count=3)
    plan = make_plan(snapshot(first, second, third), ISOLATED, MIXED)
    assert [(d.app_name, d.gpu) for d in plan.deployments] == [("a", 0), ("b", 1)]
    assert plan.unplaced == {"c": "model 'c' needs GPU 0, which was taken on a node with accelerator type A100"}


def test_what_a_grown_cluster_would_hold_is_asked_for() -> None:
    def wanted(*models: RepositoryModel, facts: ClusterFacts = CPUS) -> list[dict[str, float]]:
        found = snapshot(*models)
        return demand(found, make_plan(found, ISOLATED, facts), facts)

    on_gpu = "instance_group { kind: KIND_GPU gpus: 1 }"
    assert wanted(model("runs", PYTHON)) == []
    assert wanted(model("m", ONNX + on_gpu), model("runs", PYTHON)) == [{"GPU": 1}, {"GPU": 1}, {"CPU": 0.05}]
    several = parameter("num_gpus", "2") + parameter("replicas", "2") + parameter("accelerator_type", "A100")
    bundle = {"GPU": 2, "accelerator_type:A100": 0.001}
    assert wanted(model("m", ONNX + on_gpu + several)) == [bundle, bundle]
    full = ONNX + on_gpu + parameter("num_gpus", "1")
    waits = 'backend: "pytorch" instance_group { kind: KIND_MODEL } ' + parameter("num_gpus", "1")
    one = ClusterFacts((NodeFacts(8, 1),))
    assert (
        wanted(model("a", full.replace("gpus: 1", "gpus: 0"), gpu_count=1), model("b", waits), facts=one)[:2]
        == [{"GPU": 1}] * 2
    )
    assert wanted(model("m", PYTHON + parameter("num_cpus", "9"))) == [{"CPU": 9}]
    assert wanted(model("m", PYTHON), facts=ClusterFacts((NodeFacts(0, 0),))) == [{"CPU": 0.05}]


def test_estimates_memory_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1000))
    given = model("m", ONNX)
    given = replace(given, packages=(replace(given.packages[0], file_path=str(path)),))
    deployment = only(make_plan(snapshot(given), ISOLATED, CPUS))
    assert deployment.models[0].file_bytes == 1000
    assert deployment.memory_bytes == 2500 + (256 << 20)


def test_sessions_for_several_sizes_of_batches_count_on_a_gpu(tmp_path: Path) -> None:
    shape = "FLOAT:n,1,4,4"
    path = write_model(
        tmp_path / "model.onnx",
        ["Conv X,W Y"],
        [f"X:{shape}"],
        [f"Y:{shape}"],
        {"W": np.ones((1, 1, 1, 1), np.float32)},
    )
    size = Path(path).stat().st_size
    for more, facts, session_count in (("", GPUS, 3), ("", CPUS, 1), (parameter("memory_bytes", "5000"), GPUS, 0)):
        text = ONNX + "max_batch_size: 8 dynamic_batching { } " + more
        given = model("m", text, gpu_count=facts.num_gpus and 1)
        given = replace(given, packages=(replace(given.packages[0], file_path=path),))
        deployment = only(make_plan(snapshot(given), ISOLATED, facts))
        base = 256 << 20 if facts is CPUS else 512 << 20
        expected = int(2.5 * size) + base + (session_count - 1) * size if session_count else 5000
        assert deployment.memory_bytes == expected
