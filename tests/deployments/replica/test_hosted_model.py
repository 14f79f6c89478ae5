import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.replica.hosted_model import HostedModel, Packages, packages_by_name
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import ModelPlan, Plan, PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions

CLASSIFIER = """
backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "SCORES" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling { step { model_name: "%s" model_version: -1
  input_map { key: "%s" value: "IN" } output_map { key: "%s" value: "OUT" } } }
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    files = {
        "classifier/config.pbtxt": CLASSIFIER,
        "classifier/labels.txt": "cat\ndog\n",
        "classifier/1/model.py": "",
        "inner/config.pbtxt": ENSEMBLE % ("classifier", "X", "SCORES"),
        "inner/1/.keep": "",
        "outer/config.pbtxt": ENSEMBLE % ("inner", "IN", "OUT"),
        "outer/1/.keep": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    return make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))


@pytest.fixture
def hosted(plan: Plan) -> dict[str, HostedModel]:
    packages = packages_by_name(plan)
    return {model.name: HostedModel.of(model, packages) for model in plan.deployments[0].models}


def test_it_survives_the_way_through_json(hosted: dict[str, HostedModel]) -> None:
    for model in hosted.values():
        assert HostedModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_an_ensemble_knows_its_steps(hosted: dict[str, HostedModel]) -> None:
    assert list(hosted["outer"].steps) == ["inner"]
    assert hosted["classifier"].steps == {}


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ('parameters { key: "eagleray.placement" value { string_value: "embedded" } }', True),
        ("instance_group { count: 3 }", True),
        ('parameters { key: "threshold" value { string_value: "3" } }', False),
    ],
)
def test_an_ensemble_is_loaded_anew_for_what_its_step_is_and_not_for_where_that_runs(
    hosted: dict[str, HostedModel], more: str, same: bool
) -> None:
    packages = {name: each.package for name, each in hosted.items()}
    inner = ModelPlan("inner", 1, packages["inner"], "packed", (), 0, ("classifier",))
    config = ModelConfig()
    config.CopyFrom(packages["classifier"].config)
    config.ClearField("instance_group")
    config.MergeFrom(text_format.Parse(more, ModelConfig()))
    changed = packages | {"classifier": replace(packages["classifier"], config=config)}
    digests = [HostedModel.of(inner, Packages(each)).to_dict()["digest"] for each in (packages, changed)]
    assert (digests[0] == digests[1]) is same


@pytest.mark.parametrize(("model", "output"), [("classifier", "SCORES"), ("inner", "OUT"), ("outer", "OUT")])
def test_labels_are_inherited_along_the_ensemble(hosted: dict[str, HostedModel], model: str, output: str) -> None:
    assert hosted[model].read_labels() == {output: ["cat", "dog"]}


def test_ensembles_with_many_ways_through_them_are_read_at_once(tmp_path: Path) -> None:
    """Each has the one before as two of its steps: there are 2^48 ways to the classifier."""
    step = 'step { model_name: "e%d" model_version: -1 input_map { key: "X" value: "%s" } output_map { key: "Y" value: "%s" } } '
    tensors = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 %s } '
    for number in range(49):
        steps = step % (number - 1, "X", "between") + step % (number - 1, "between", "Y")
        backend = f'platform: "ensemble" ensemble_scheduling {{ {steps} }}' if number else 'backend: "python"'
        (tmp_path / f"e{number}/1").mkdir(parents=True)
        (tmp_path / f"e{number}/1/model.py").touch()
        (tmp_path / f"e{number}/labels.txt").write_text("cat\n")
        labels = "" if number else 'label_filename: "labels.txt"'
        (tmp_path / f"e{number}/config.pbtxt").write_text(tensors % labels + backend)
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))
    hosted = [HostedModel.of(model, packages_by_name(plan)) for model in plan.deployments[0].models]
    assert len(hosted) == 49
    assert all(model.read_labels() == {"Y": ["cat"]} for model in hosted)


def test_only_the_end_of_a_line_divides_labels(hosted: dict[str, HostedModel], tmp_path: Path) -> None:
    text = "form\x0cfeed\r\n\nnext\x85line\nline\u2028separator\n".encode() + b"caf\xe9"
    (tmp_path / "classifier" / "labels.txt").write_bytes(text)
    (labels,) = hosted["classifier"].read_labels().values()
    assert labels == ["form\x0cfeed", "", "next\x85line", "line\u2028separator", "caf\udce9"]


def test_a_label_file_that_has_gone_is_named_without_its_path(hosted: dict[str, HostedModel], tmp_path: Path) -> None:
    (tmp_path / "classifier" / "labels.txt").unlink()
    with pytest.raises(ModelLoadError, match=r"^unable to read label file 'labels.txt': No such file or directory$"):
        hosted["classifier"].read_labels()


@pytest.mark.parametrize(
    ("key", "same"),
    [
        ("eagleray.replicas", True),
        ("eagleray.autoscaling.max_replicas", True),
        ("eagleray.autoscaling.downscale_delay_s", True),
        ("eagleray.traffic", True),
        ("eagleray.inline", False),
        ("threshold", False),
    ],
)
def test_a_model_is_loaded_anew_for_what_it_is_and_not_for_how_many_there_are(
    hosted: dict[str, HostedModel], key: str, same: bool
) -> None:
    model = hosted["classifier"]
    config = ModelConfig()
    config.CopyFrom(model.package.config)
    config.parameters[key].string_value = "2"
    changed = replace(model, package=replace(model.package, config=config))
    assert (changed.to_dict()["digest"] == model.to_dict()["digest"]) is same
    assert changed.package.runs_as(model.package) is same


def test_what_is_told_of_a_model_is_made_once_but_for_ensembles_which_follow_their_steps(plan: Plan) -> None:
    former = packages_by_name(plan)
    told = {model.name: former.told(model) for model in plan.models}
    assert told == {model.name: HostedModel.of(model, former).to_dict() for model in plan.models}
    classifier, inner, _ = plan.models
    assert former.told(classifier) is told["classifier"]
    again = packages_by_name(plan)
    again.take_told(former, plan)
    assert again.told(classifier) is told["classifier"]

    config = ModelConfig()
    config.CopyFrom(classifier.package.config)
    config.parameters["threshold"].string_value = "3"
    changed = replace(classifier, package=replace(classifier.package, config=config))
    deployment = replace(plan.deployments[0], models=(changed, *plan.models[1:]))
    later = replace(plan, deployments=(deployment,))
    after = packages_by_name(later)
    after.take_told(former, later)
    for model in (changed, inner):
        assert after.told(model) == HostedModel.of(model, after).to_dict() != told[model.name]
