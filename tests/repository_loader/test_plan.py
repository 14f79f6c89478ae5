import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import Plan, PlanSettings
from repository_loader.device_parts import own_processes
from repository_loader.package import InstanceSpec
from repository_loader.plan import app_name, make_plan
from repository_loader.snapshot import RepositoryModel
from tests.repository_loader.planned_models import (
    CPUS,
    GIB,
    GPUS,
    ISOLATED,
    MIXED,
    ONNX,
    PYTHON,
    cpu,
    ensemble,
    gpu,
    model,
    only,
    parameter,
    snapshot,
)

SHAPES = {
    "threads of one replica": (ONNX + "instance_group { count: 3 }", 0, 1, cpu("m_0_0", "m_0_1", "m_0_2")),
    "processes of one replica": (
        PYTHON + "instance_group { count: 3 }",
        0,
        1,
        own_processes(cpu("m_0_0", "m_0_1", "m_0_2")),
    ),
    "a Python model alone": (PYTHON, 0, 1, cpu("m_0")),
    "a Python model whose batches may be ended": (
        PYTHON + parameter("execution_timeout_ms", "500"),
        0,
        1,
        own_processes(cpu("m_0")),
    ),
    "two groups": (
        ONNX + 'instance_group [ { name: "a" count: 1 }, { name: "b" count: 2 } ]',
        0,
        1,
        cpu("a_0", "b_0", "b_1"),
    ),
    "two groups of a Python model": (
        PYTHON + "instance_group [ { count: 1 }, { count: 2 } ]",
        0,
        1,
        own_processes(cpu("m_0_0", "m_1_0", "m_1_1")),
    ),
    "passive instances do not run": (
        ONNX + "instance_group [ { count: 1 }, { count: 2 passive: true } ]",
        0,
        1,
        cpu("m_0_0"),
    ),
    "passive instances of a Python model": (
        PYTHON + "instance_group [ { count: 1 passive: true }, { count: 1 }, { passive: true kind: KIND_GPU } ]",
        0,
        1,
        own_processes((*cpu("m_1_0"), InstanceSpec("m_0_0", "CPU", 0, passive=True))),
    ),
    "only the GPUs that are listed": (ONNX + "instance_group { count: 2 gpus: 1 }", 2, 1, gpu("m_0_0", "m_0_1")),
    "Python instances on a GPU": (
        PYTHON + "instance_group { count: 3 gpus: 1 }",
        2,
        1,
        own_processes(gpu("m_0_0", "m_0_1", "m_0_2")),
    ),
    "the model places itself": (
        'backend: "pytorch" instance_group { kind: KIND_MODEL }',
        2,
        1,
        (InstanceSpec("m_0_0", "MODEL", 0),),
    ),
}


@pytest.mark.parametrize(("text", "gpu_count", "replica_count", "specs"), SHAPES.values(), ids=SHAPES)
def test_divides_instances_into_replicas(
    text: str, gpu_count: int, replica_count: int, specs: tuple[InstanceSpec, ...]
) -> None:
    resources = GPUS if gpu_count else CPUS
    deployment = only(make_plan(snapshot(model("m", text, gpu_count=gpu_count)), ISOLATED, resources))
    assert (deployment.app_name, deployment.name, deployment.placement) == ("m", "v1", "isolated")
    assert deployment.replica_count == replica_count
    assert [planned.specs for planned in deployment.models] == [specs]


def test_versions_are_deployments_of_one_application_in_order() -> None:
    plan = make_plan(snapshot(model("m", PYTHON, versions=(2, 10, 9))), ISOLATED, CPUS)
    assert [deployment.place for deployment in plan.deployments] == [
        ("m", "v2"),
        ("m", "v9"),
        ("m", "v10"),
    ]


def test_memory_that_a_model_says_it_takes_is_reserved_on_the_cpu() -> None:
    given = ONNX + parameter("memory_bytes", str(2 * GIB))
    assert only(make_plan(snapshot(model("m", given)), ISOLATED, CPUS)).reserved_memory_bytes == 2 * GIB
    assert only(make_plan(snapshot(model("m", ONNX)), ISOLATED, CPUS)).reserved_memory_bytes == 0
    on_gpus = make_plan(snapshot(model("m", given, gpu_count=2)), ISOLATED, GPUS).deployments
    assert on_gpus and not any(deployment.reserved_memory_bytes for deployment in on_gpus)
    packed = make_plan(snapshot(model("a", given), model("b", given)), PlanSettings(placement="packed"), CPUS)
    assert only(packed).reserved_memory_bytes == 4 * GIB


@pytest.mark.parametrize("first", ["isolated", "packed"])
@pytest.mark.parametrize("second", ["isolated", "packed"])
def test_what_models_ask_for_is_added_up_wherever_they_run(first: str, second: str) -> None:
    node = ClusterFacts((NodeFacts(num_cpus=4, memory_bytes=8 * GIB),))
    for key, much, complaint in (
        ("memory_bytes", 6 * GIB, "bytes of memory and the"),
        ("num_cpus", 3, "CPUs and the"),
    ):
        asking = [ONNX + parameter(key, str(much)) + parameter("placement", each) for each in (first, second)]
        plan = make_plan(snapshot(model("a", asking[0]), model("b", asking[1]), model("c", ONNX)), ISOLATED, node)
        assert list(plan.unplaced) == ["b"] and complaint in plan.unplaced["b"]


def test_what_asks_for_too_much_does_not_hold_up_what_it_is_packed_with() -> None:
    node = ClusterFacts((NodeFacts(num_cpus=4, memory_bytes=8 * GIB),))
    asking = model("greedy", ONNX + parameter("memory_bytes", str(100 * GIB)) + parameter("placement", "packed"))
    plan = make_plan(snapshot(asking, model("small", ONNX)), PlanSettings(), node)
    assert list(plan.unplaced) == ["greedy"]
    assert [[each.name for each in deployment.models] for deployment in plan.deployments] == [["small"]]


def test_memory_that_no_node_has_cannot_be_placed() -> None:
    small = ClusterFacts((NodeFacts(num_cpus=8, memory_bytes=GIB),))
    plan = make_plan(snapshot(model("m", ONNX + parameter("memory_bytes", str(2 * GIB)))), ISOLATED, small)
    assert plan.unplaced == {
        "m": f"a replica of model 'm' needs {2 * GIB} bytes of memory and the largest node has {GIB}"
    }


def test_parameters_of_the_model_come_first() -> None:
    text = ONNX + parameter("num_cpus", "2") + parameter("replicas", "3") + parameter("memory_bytes", "7")
    deployment = only(make_plan(snapshot(model("m", text)), ISOLATED, CPUS))
    assert (deployment.num_cpus, deployment.replica_count, deployment.memory_bytes) == (2.0, 3, 7)
    text = ONNX + parameter("num_gpus", "0.5")
    assert only(make_plan(snapshot(model("m", text, gpu_count=1)), ISOLATED, GPUS)).num_gpus == 0.5


def test_packs_cpu_models_together() -> None:
    models = snapshot(
        model("a", ONNX + "instance_group { kind: KIND_CPU count: 2 }", gpu_count=2),
        model("b", PYTHON + "instance_group { kind: KIND_CPU count: 2 }" + parameter("num_cpus", "1.5"), gpu_count=2),
        model("g", ONNX + "instance_group { gpus: 0 }", gpu_count=2),
        model("alone", PYTHON + "instance_group { kind: KIND_CPU }" + parameter("placement", "isolated"), gpu_count=2),
        ensemble("e", "a", "b"),
    )
    plan = make_plan(models, PlanSettings(placement="packed"), GPUS)
    placed = {d.place: [planned.name for planned in d.models] for d in plan.deployments}
    assert placed == {("alone", "v1"): ["alone"], ("eagleray-packed", "models"): ["a", "b", "e"], ("g", "v1"): ["g"]}
    packed = next(d for d in plan.deployments if d.app_name == "eagleray-packed")
    assert (packed.replica_count, packed.num_cpus, packed.num_gpus) == (1, 1.5, 0.0)
    assert packed.models[1].specs == own_processes(cpu("b_0_0", "b_0_1"))
    assert packed.models[2].dependencies == ("a", "b")


def test_embeds_models() -> None:
    models = snapshot(model("b", PYTHON + "instance_group { count: 2 }"), model("a", ONNX), ensemble("e", "a"))
    plan = make_plan(models, PlanSettings(placement="embedded"), CPUS)
    assert plan.deployments == ()
    assert [(planned.name, len(planned.specs)) for planned in plan.embedded] == [("a", 2), ("b", 2), ("e", 0)]


def test_embeds_a_gpu_model_only_when_it_says_so() -> None:
    stays = model("stays", ONNX, gpu_count=2)
    moves = model("moves", ONNX + parameter("placement", "embedded"), gpu_count=2)
    plan = make_plan(snapshot(stays, moves), PlanSettings(placement="embedded"), GPUS)
    assert {deployment.app_name for deployment in plan.deployments} == {"stays"}
    assert [(spec.name, spec.device) for spec in plan.embedded[0].specs] == [("moves_0", 0), ("moves_0_gpu1", 1)]


UNPLACED = {
    "needs a GPU": (model("m", ONNX, gpu_count=1), CPUS, "model 'm' needs a GPU and the cluster has none"),
    "needs more GPUs": (model("m", ONNX, gpu_count=4), GPUS, "model 'm' needs 4 GPUs and the cluster has 2"),
    "replicas need more GPUs": (
        model("m", ONNX + parameter("num_gpus", "0.7") + parameter("replicas", "3"), gpu_count=2),
        GPUS,
        "model 'm' needs 1.4 of GPU 0",
    ),
    "more GPUs than there are": (
        model("m", ONNX + parameter("num_gpus", "2") + parameter("replicas", "3"), gpu_count=1),
        GPUS,
        "model 'm' needs 6 GPUs and the cluster has 2",
    ),
    "more GPUs than on one node": (
        model("m", ONNX + parameter("num_gpus", "2"), gpu_count=1),
        ClusterFacts((NodeFacts(4, 1), NodeFacts(4, 1))),
        "a replica of model 'm' needs 2 GPUs and the largest node has 1",
    ),
    "backend for GPUs": (
        model("m", 'backend: "tensorrt"'),
        CPUS,
        "model 'm' of backend 'tensorrt' runs on GPUs only, not on KIND_CPU",
    ),
    "CPUs of a node": (
        model("m", ONNX + parameter("num_cpus", "6")),
        ClusterFacts((NodeFacts(4), NodeFacts(4))),
        "a replica of model 'm' needs 6 CPUs and the largest node has 4",
    ),
    "CPUs of the cluster": (
        model("m", ONNX + parameter("num_cpus", "6") + parameter("replicas", "2")),
        CPUS,
        "model 'm' needs 12 CPUs and the cluster has 8",
    ),
    "CPUs that others have": (
        model("m", ONNX + parameter("num_cpus", "7.97")),
        CPUS,
        "model 'm' needs 7.97 CPUs and the cluster has 7.95 free",
    ),
    "memory of the cluster": (
        model("m", ONNX + parameter("memory_bytes", "3000000000") + parameter("replicas", "3")),
        ClusterFacts((NodeFacts(4, memory_bytes=4 << 30), NodeFacts(4, memory_bytes=4 << 30))),
        "3 replicas of model 'm' need 9000000000 bytes of memory and the cluster has 8589934592",
    ),
    "memory of so many processes": (
        model("m", ONNX + parameter("num_cpus", "0.0001") + parameter("replicas", "9999")),
        ClusterFacts((NodeFacts(8, memory_bytes=8 << 30),)),
        "9999 replicas of model 'm' need 671021531136 bytes of memory and the cluster has 8589934592",
    ),
    "memory of a GPU": (
        model("m", ONNX + parameter("memory_bytes", "20000000000"), gpu_count=1),
        GPUS,
        "model 'm' needs 20000000000 bytes of a GPU's memory and the smallest GPU has 17179869184",
    ),
    "nodes of a kind": (
        model("m", ONNX + parameter("accelerator_type", "H100") + parameter("node_labels", "zone=a")),
        MIXED,
        "model 'm' needs a node with accelerator type H100 and label zone=a and the cluster has none",
    ),
    "GPUs of a kind": (
        model("m", ONNX + parameter("node_labels", "disk=fast"), gpu_count=1),
        ClusterFacts((NodeFacts(4, 1), NodeFacts(4, labels=(("disk", "fast"),)))),
        "model 'm' needs a GPU on a node with label disk=fast and the cluster has none",
    ),
    "nothing to run": (
        model("m", ONNX + "instance_group { passive: true }"),
        CPUS,
        "model 'm' has no instance group that is not passive",
    ),
}


@pytest.mark.parametrize(("given", "resources", "reason"), UNPLACED.values(), ids=UNPLACED)
def test_tells_what_the_cluster_can_never_hold(given: RepositoryModel, resources: ClusterFacts, reason: str) -> None:
    plan = make_plan(snapshot(given, model("good", PYTHON)), ISOLATED, resources)
    assert plan.unplaced == {"m": reason}
    assert [deployment.app_name for deployment in plan.deployments] == ["good"]


def test_models_that_take_all_there_is_leave_none_free() -> None:
    models = [model(f"m{index:02}", ONNX + parameter("num_cpus", "0.1")) for index in range(21)]
    plan = make_plan(snapshot(*models), ISOLATED, ClusterFacts((NodeFacts(num_cpus=2),)))
    assert plan.unplaced == {"m20": "model 'm20' needs 0.1 CPUs and the cluster has 0 free"}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("replicas", "9999", "model 'm' needs 499.95 CPUs and the cluster has 8"),
        ("num_cpus", "9", "a replica of model 'm' needs 9 CPUs and the largest node has 8"),
    ],
)
def test_a_packed_model_that_asks_for_more_than_there_is_keeps_no_other_from_its_process(
    name: str, value: str, reason: str
) -> None:
    greedy = model("m", ONNX + parameter(name, value))
    for models in ((model("good", ONNX), greedy), (model("z-good", ONNX), greedy)):
        plan = make_plan(snapshot(*models), PlanSettings("packed"), CPUS)
        assert plan.unplaced == {"m": reason}
        (deployment,) = plan.deployments
        assert [each.name for each in deployment.models] == [models[0].name]
        assert (deployment.replica_count, deployment.num_cpus) == (1, 0.05)


def test_an_ensemble_needs_all_its_models() -> None:
    plan = make_plan(
        snapshot(ensemble("a-outer", "inner"), ensemble("inner", "z"), model("z", ONNX, gpu_count=1)),
        ISOLATED,
        CPUS,
    )
    assert list(plan.unplaced) == ["a-outer", "inner", "z"]
    assert plan.unplaced["inner"] == (
        "ensemble 'inner' depends on 'z' which has no loaded version. Model 'z' loading failed with error: "
        "model 'z' needs a GPU and the cluster has none"
    )


def test_models_that_failed_are_not_planned() -> None:
    failed = replace(model("m", ONNX), packages=(), failure="broken")
    assert make_plan(snapshot(failed), ISOLATED, CPUS) == Plan()


@pytest.mark.parametrize(
    ("name", "application"),
    [
        ("resnet", "resnet"),
        ("a model.v2", "a model.v2"),
        ("eagleray", "eagleray-model-eagleray"),
        ("eagleray-packed", "eagleray-model-eagleray-packed"),
        ("a#b", "a=23b"),
        ("a%23b", "a=2523b"),
    ],
)
def test_names_applications(name: str, application: str) -> None:
    assert app_name(name) == application


@given(
    st.sets(
        st.text(min_size=1, max_size=6) | st.sampled_from(["eagleray", "eagleray-model-eagleray", "a#", "a%23", "a=23"])
    )
)
def test_application_names_never_clash(names: set[str]) -> None:
    applications = {app_name(name) for name in names if name.isprintable()}
    assert len(applications) == sum(name.isprintable() for name in names)
    assert not applications & {"eagleray", "eagleray-packed"}
    assert not any("#" in application or "/" in application for application in applications)


GROUPS = st.builds(
    lambda kind, count, passive: f"instance_group {{ kind: {kind} count: {count} passive: {str(passive).lower()} }} ",
    st.sampled_from(["KIND_CPU", "KIND_GPU", "KIND_AUTO", "KIND_MODEL"]),
    st.integers(0, 5),
    st.booleans(),
)
TEXTS = st.builds(
    lambda backend, groups, parameters: f'backend: "{backend}" {"".join(groups)}{"".join(parameters)}',
    st.sampled_from(["onnxruntime", "python", "tensorrt", "mine"]),
    st.lists(GROUPS, max_size=3),
    st.lists(
        st.one_of(
            st.sampled_from(["isolated", "packed", "embedded"]).map(lambda value: parameter("placement", value)),
            st.integers(0, 40).map(lambda value: parameter("memory_bytes", str(value * GIB))),
            st.integers(1, 3).map(lambda value: parameter("replicas", str(value))),
        ),
        max_size=2,
    ),
)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(TEXTS, st.sets(st.integers(0, 12), min_size=1, max_size=3)), max_size=4),
    st.sampled_from(["auto", "isolated", "packed", "embedded"]),
    st.integers(0, 3),
    st.floats(0.1, 16),
)
def test_every_plan_holds_together(
    described: list[tuple[str, set[int]]], placement: str, gpu_count: int, num_cpus: float
) -> None:
    models = [
        model(f"m{index}", text, tuple(sorted(versions)), gpu_count) for index, (text, versions) in enumerate(described)
    ]
    resources = ClusterFacts((NodeFacts(num_cpus, gpu_count, gpu_memory_bytes=16 * GIB),))
    wanted_placement = PlanSettings(placement=placement)  # type: ignore[arg-type]
    whole = snapshot(*models, ensemble("e", *(given.name for given in models)) if models else ensemble("e"))
    plan = make_plan(whole, wanted_placement, resources)

    placed = {(planned.name, planned.version) for d in plan.deployments for planned in d.models}
    placed |= {(planned.name, planned.version) for planned in plan.embedded}
    wanted = {(given.name, package.version) for given in whole.models.values() for package in given.packages}
    assert placed == {key for key in wanted if key[0] not in plan.unplaced}
    if any(given.name in plan.unplaced for given in models):
        assert "depends on" in plan.unplaced["e"]
    else:  # it needs a replica of its own when it is isolated
        assert "CPUs" in plan.unplaced.get("e", "CPUs")

    keys = [deployment.place for deployment in plan.deployments]
    assert len(keys) == len(set(keys))
    for deployment in plan.deployments:
        assert deployment.replica_count >= 1
        assert deployment.num_gpus * deployment.replica_count <= 1 + 1e-3
        assert (deployment.placement == "packed") == (deployment.app_name == "eagleray-packed")
        for planned in deployment.models:
            assert planned.specs or planned.dependencies or planned.name == "e"
            names = [spec.name for spec in planned.specs]
            assert len(names) == len(set(names))
            if deployment.num_gpus == 0:
                assert {spec.kind for spec in planned.specs} <= {"CPU", "MODEL"}
    assert make_plan(whole, wanted_placement, resources) == plan
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()


def test_a_sequence_model_is_never_embedded() -> None:
    by_flag, by_itself = model("a", ONNX + "sequence_batching { }"), parameter("placement", "embedded")
    own = model("b", ONNX + "sequence_batching { }" + by_itself)
    for placement in ("auto", "embedded"):
        plan = make_plan(snapshot(by_flag, own), PlanSettings(placement=placement), CPUS)
        assert plan.embedded == () and [each.placement for each in only(plan).models] == ["packed", "packed"]
    assert {each.why for each in only(plan).models} == {"each ingress would hold sequences of its own"}


def test_an_ensemble_of_an_embedded_model_is_embedded_too() -> None:
    plan = make_plan(
        snapshot(
            model("inner", parameter("placement", "embedded")), model("other"), ensemble("outer", "inner", "other")
        ),
        PlanSettings(placement="packed"),
        CPUS,
    )
    assert [embedded.name for embedded in plan.embedded] == ["inner", "outer"]


def heavy(given: RepositoryModel, folder: Path) -> RepositoryModel:
    path = folder / "weights"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    return replace(given, packages=tuple(replace(package, file_path=str(path)) for package in given.packages))


def test_auto_isolates_what_has_a_reason_and_packs_the_rest(tmp_path: Path) -> None:
    on_cpu = "instance_group { kind: KIND_CPU }"
    models = snapshot(
        model("small", ONNX + on_cpu),
        model("torch", 'backend: "pytorch" ' + on_cpu),
        model("code", PYTHON + on_cpu),
        model("gpu", ONNX + "instance_group { gpus: 0 }", gpu_count=2),
        model("several", ONNX + on_cpu + parameter("replicas", "2")),
        model("hungry", ONNX + on_cpu + parameter("num_cpus", "2")),
        heavy(model("heavy", ONNX + on_cpu), tmp_path),
        model("library", ONNX + on_cpu + 'model_operations { op_library_filename: "libops.so" }'),
        model("chosen", ONNX + on_cpu + parameter("placement", "isolated")),
        ensemble("pipeline", "small", "torch"),
        ensemble("mixed", "step", "small"),
        model("step", PYTHON + on_cpu),
        model("chosen_step", PYTHON + on_cpu + parameter("placement", "isolated")),
        model("hungry_step", PYTHON + on_cpu + parameter("num_cpus", "2")),
        model("gpu_step", PYTHON + "instance_group { gpus: 0 }", gpu_count=2),
        model("heavy_step", PYTHON + on_cpu + parameter("memory_bytes", str(64 << 20))),
        ensemble("beside", "chosen_step", "hungry_step", "gpu_step", "heavy_step"),
        model("distant", PYTHON + on_cpu),
        ensemble("scaled", "distant", more=parameter("num_cpus", "1")),
    )
    plan = make_plan(models, PlanSettings(), GPUS)
    reasons = {planned.name: (planned.placement, planned.why) for d in plan.deployments for planned in d.models}
    assert reasons == {
        "small": ("packed", "small and on the CPU"),
        "torch": ("packed", "small and on the CPU"),
        "code": ("isolated", "its code is Python"),
        "gpu": ("isolated", "runs on a GPU"),
        "several": ("isolated", "has 2 replicas of its own"),
        "hungry": ("isolated", "asks for 2 CPUs"),
        "heavy": ("isolated", "takes 100 MiB"),
        "library": ("isolated", "loads a library of operators"),
        "chosen": ("isolated", "its configuration says so"),
        "pipeline": ("packed", "an ensemble has no weights and no code"),
        "mixed": ("packed", "an ensemble has no weights and no code"),
        "step": ("packed", "a step of ensemble 'mixed'"),
        "chosen_step": ("isolated", "its configuration says so"),
        "hungry_step": ("isolated", "asks for 2 CPUs"),
        "gpu_step": ("isolated", "runs on a GPU"),
        "heavy_step": ("isolated", "takes 64 MiB"),
        "beside": ("packed", "an ensemble has no weights and no code"),
        "distant": ("isolated", "its code is Python"),
        "scaled": ("isolated", "asks for 1 CPUs"),
    }
    (packed,) = (d for d in plan.deployments if d.placement == "packed")
    assert [spec.own_process for each in packed.models if each.name == "step" for spec in each.specs] == [True]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("autoscaling.max_replicas", "3", "scales with its load"),
        ("node_labels", "zone=a", "asks for nodes with label zone=a"),
        ("accelerator_type", "A100", "asks for nodes with accelerator type A100"),
    ],
)
def test_auto_isolates_what_scales_or_asks_for_nodes(name: str, value: str, reason: str) -> None:
    on_cpu = ONNX + "instance_group { kind: KIND_CPU }"
    plan = make_plan(snapshot(model("m", on_cpu + parameter(name, value))), PlanSettings(), MIXED)
    assert [(each.placement, each.why) for each in only(plan).models] == [("isolated", reason)]


def test_a_name_after_which_serve_could_name_no_log_has_no_replicas_of_its_own() -> None:
    plan = make_plan(snapshot(*(model("é" * length, PYTHON) for length in (37, 38))), PlanSettings(), CPUS)
    assert list(plan.unplaced) == ["é" * 38]
    assert plan.unplaced["é" * 38].endswith("for replicas of its own; shorten it, or have it 'packed'")
    assert make_plan(snapshot(model("é" * 38, PYTHON)), PlanSettings(placement="packed"), CPUS).unplaced == {}
