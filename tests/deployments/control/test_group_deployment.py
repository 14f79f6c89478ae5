import json
from dataclasses import replace

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.controller_options import ControllerOptions
from deployments.control.group_deployment import deployment_options
from deployments.replica.hosted_model import Packages
from protocol.limits import Limits
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, PlanSettings
from repository_loader.package import ModelPackage
from repository_loader.snapshot import LoaderOptions

OPTIONS = ControllerOptions((), LoaderOptions(), PlanSettings(), Limits())


def actor_options(text: str, num_gpus: float = 0.0) -> dict[str, float]:
    config = text_format.Parse(f'name: "m" backend: "onnxruntime" {text}', ModelConfig())
    package = ModelPackage("m", 1, config, "/r/m", "/r/m/1", "")
    model = ModelPlan("m", 1, package, "isolated", (), 0)
    plan = DeploymentPlan("m", "v1", "isolated", (model,), 1, 0.05, num_gpus, 1 << 30)
    options: dict[str, float] = deployment_options(plan, Packages({"m": package}), OPTIONS, {}, "owner")[
        "ray_actor_options"
    ]
    return options


def test_memory_that_a_model_says_it_takes_is_reserved_by_ray() -> None:
    given = 'parameters { key: "eagleray.memory_bytes" value { string_value: "3000000" } }'
    assert actor_options(given)["memory"] == 3_000_000
    assert "memory" not in actor_options("")
    assert "memory" not in actor_options(given, num_gpus=1.0)


PACKAGE = ModelPackage("m", 1, text_format.Parse('name: "m"', ModelConfig()), "/r/m", "/r/m/1", "")
STEP = ModelPlan("m", 1, PACKAGE, "packed", (), 0)
ENSEMBLE = ModelPlan("e", 1, replace(PACKAGE, name="e"), "packed", (), 0, ("m",))
GROUP = DeploymentPlan("packed", "models", "packed", (ENSEMBLE, STEP), 1, 0.05, 0.0, 0)
HERE, THERE = ("packed", "models"), ("m", "v1")


def watched(group: DeploymentPlan, *places: tuple[str, str]) -> list[list[str]]:
    options = deployment_options(group, Packages({"m": PACKAGE}), OPTIONS, {"m": [*places]}, "owner")
    found: list[list[str]] = json.loads(options["user_config"]["load"])["watch"]
    return found


def test_an_ensemble_has_a_lane_to_its_step_before_that_leaves_its_process() -> None:
    assert watched(GROUP, HERE) == []
    leaves = replace(GROUP, models=(ENSEMBLE, replace(STEP, leaving=True)))
    assert watched(leaves, HERE, THERE) == [[*THERE]]


def test_an_ensemble_keeps_its_lane_to_a_step_that_is_loaded_in_its_process_until_that_is_there() -> None:
    assert watched(GROUP, HERE, THERE) == [[*THERE]]
