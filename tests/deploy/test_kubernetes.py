"""deploy/kubernetes: what Kubernetes and KubeRay take, and what it lets through."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.scripts.scripts import drain_node
from ray.serve.schema import ServeDeploySchema

from app.settings import Settings
from tests.deploy.kuberay import RAY_SERVICE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
KUBERNETES = "1.31"
TRITON_PORTS = {8000, 8001, 8002}


def load(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


MANIFEST = load(FOLDER / "eagleray.yaml")
BY_KIND = {document["kind"]: document for document in MANIFEST}
SERVICE = next(
    document for document in MANIFEST if document["kind"] == "Service" and document["metadata"]["name"] == "eagleray"
)
CLUSTER = BY_KIND["RayService"]["spec"]["rayClusterConfig"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
WORKERS = [group["template"] for group in CLUSTER["workerGroupSpecs"]]
PODS = [*(group["template"] for group in GROUPS), BY_KIND["StatefulSet"]["spec"]["template"]]


def serve_config() -> dict[str, Any]:
    loaded = yaml.safe_load(BY_KIND["RayService"]["spec"]["serveConfigV2"])
    assert isinstance(loaded, dict)
    return loaded


def documents_of_kubernetes() -> Iterator[dict[str, Any]]:
    yield from (document for document in MANIFEST if document["kind"] != "RayService")
    yield from load(FOLDER / "secrets.example.yaml")
    for number, template in enumerate(PODS):
        metadata = {**template["metadata"], "name": f"pod-{number}"}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.mark.parametrize(
    "document", list(documents_of_kubernetes()), ids=lambda d: f"{d['kind']}-{d['metadata']['name']}"
)
def test_kubernetes_takes_every_object_and_every_pod(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_kuberay_takes_the_service() -> None:
    jsonschema.validate(BY_KIND["RayService"], RAY_SERVICE)


def test_ray_serve_and_eagleray_take_the_configuration() -> None:
    config = ServeDeploySchema.model_validate(serve_config())
    (application,) = config.applications
    assert application.import_path == "eagleray:build"
    settings = Settings(**application.args)
    assert settings.model_repository == ("s3://models/triton-repo",)
    assert {settings.http_address, settings.grpc_address, settings.metrics_address} == {"0.0.0.0"}


def test_versions_of_ray_are_those_that_are_installed() -> None:
    (installed,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert CLUSTER["rayVersion"] == installed
    (base,) = re.findall(r"^ARG BASE=rayproject/ray:([\d.]+)-py311", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base == installed


def test_service_reaches_the_ports_of_triton_on_worker_pods() -> None:
    ports = {port["port"]: port["targetPort"] for port in SERVICE["spec"]["ports"]}
    assert set(ports) == TRITON_PORTS
    for template in WORKERS:
        (container,) = template["spec"]["containers"]
        offered = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {offered[name] for name in ports.values()} == TRITON_PORTS
        assert SERVICE["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "serve"}
    budget = BY_KIND["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"] == SERVICE["spec"]["selector"]


def test_worker_pods_may_be_evicted_one_at_a_time() -> None:
    """By a number: of pods that a RayCluster owns, which has no `scale`, Kubernetes knows not how many there should be."""
    for group, available in ((1, 0), (3, 2)):
        (budget,) = [
            each["spec"]
            for each in rendered({"workers": {"cpu": {"min": group}}})
            if each["kind"] == "PodDisruptionBudget"
        ]
        assert (budget.get("maxUnavailable"), budget["minAvailable"]) == (None, available)


@pytest.mark.parametrize("timeout_s", [Settings().exit_timeout_secs, 300])
def test_a_worker_pod_that_ends_has_serve_drain_it_first(timeout_s: float) -> None:
    (service,) = [
        each for each in rendered({"settings": {"exit_timeout_secs": timeout_s}}) if each["kind"] == "RayService"
    ]
    delay_s = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["args"]["drain_delay_s"]
    for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        (*_, command) = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        deadline_s, slept_s = map(float, re.findall(r"--deadline-remaining-seconds (\d+) & sleep (\d+)$", command)[0])
        # Serve begins to stop an ingress when it has as long as it may take (`app/builder.py`).
        assert deadline_s - (delay_s + timeout_s + 5) >= 10
        assert deadline_s <= slept_s <= spec["terminationGracePeriodSeconds"] - 30
    assert rendered() and drain_seconds(MANIFEST) == drain_seconds(rendered())


def drain_seconds(documents: list[dict[str, Any]]) -> list[str]:
    return re.findall(r"--deadline-remaining-seconds (\d+)", json.dumps(documents))


def test_ray_can_be_told_that_a_node_drains() -> None:
    assert {"--reason", "--reason-message", "--deadline-remaining-seconds"} <= {
        option for parameter in drain_node.params for option in parameter.opts
    }


def test_no_container_is_root_or_may_become_it() -> None:
    for template in PODS:
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]["limits"]) >= {"cpu", "memory"}


def test_pods_have_shared_memory_and_a_cache_for_models() -> None:
    for group in GROUPS:
        (container,) = group["template"]["spec"]["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume["emptyDir"] for volume in group["template"]["spec"]["volumes"]}
        assert volumes[mounts["/dev/shm"]]["medium"] == "Memory"
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["EAGLERAY_MODEL_CACHE_DIR"] in mounts


def test_secrets_are_referred_to_and_ray_asks_for_its_token() -> None:
    text = json.dumps(MANIFEST)
    assert not any(document["kind"] == "Secret" for document in MANIFEST)
    assert not re.search(r"(?i)(password|secret_access_key|token)\": \"[^\"]", text.replace('"mode": "token"', ""))
    assert CLUSTER["authOptions"] == {"mode": "token"}
    examples = {
        document["metadata"]["name"]: document["stringData"] for document in load(FOLDER / "secrets.example.yaml")
    }
    password = CLUSTER["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]
    assert password["key"] in examples[password["name"]]
    for group in GROUPS:
        (source,) = group["template"]["spec"]["containers"][0]["envFrom"]
        assert source["secretRef"]["name"] in examples


def test_head_keeps_its_state_in_redis_and_holds_no_model() -> None:
    host, _, port = CLUSTER["gcsFaultToleranceOptions"]["redisAddress"].partition(":")
    (redis,) = [d for d in MANIFEST if d["kind"] == "Service" and d["metadata"]["name"] == host]
    assert [str(each["port"]) for each in redis["spec"]["ports"]] == [port]
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert CLUSTER["enableInTreeAutoscaling"] is True


def test_workers_of_both_kinds_can_start() -> None:
    groups = {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}
    assert set(groups) == {"cpu", "gpu"}
    for group in groups.values():
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert groups["gpu"]["minReplicas"] == 0, "a GPU pod that no model needs is dear"
    (container,) = groups["gpu"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def rendered(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    chart = helm.Chart.load(str(FOLDER / "chart"))
    texts = chart.render(values, name="eagleray", namespace="default").values()
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def test_no_service_of_kubernetes_is_taken_for_a_setting() -> None:
    for group in GROUPS:
        assert group["template"]["spec"]["enableServiceLinks"] is False


def test_a_setting_that_the_chart_has_can_be_changed() -> None:
    (service,) = [each for each in rendered({"settings": {"drain_delay_s": 0}}) if each["kind"] == "RayService"]
    text = service["spec"]["serveConfigV2"]
    assert re.findall(r"drain_delay_s: (.*)", text) == ["0"]
    assert "http_address: 0.0.0.0" in text


def test_chart_renders_to_the_manifest() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    documents = rendered()

    def key(document: dict[str, Any]) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(documents, key=key) == sorted(MANIFEST, key=key), "see deploy/kubernetes/README.md"
    assert helm.lint(str(FOLDER / "chart"))["errors"] == []


def test_image_is_made_of_files_that_are_there_and_let_through() -> None:
    text = (ROOT / "Dockerfile").read_text()
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [name for line in re.findall(r"^COPY --\S+ (.+) \S+$", text, re.MULTILINE) for name in line.split()]
    assert set(copied) == let_through
    assert all((ROOT / name).exists() for name in copied)
    packages = set(
        re.findall(r'"(\w+)"', re.findall(r"^packages = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.M)[0])
    )
    assert packages <= set(copied)
    assert "USER 1000:100" in text


PAGE = (ROOT / "docs/kubernetes.md").read_text()
VALUES = yaml.safe_load((FOLDER / "chart/values.yaml").read_text())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:workers|settings|image|service)\.[a-z_.]+)", PAGE))))
def test_values_that_the_page_names_exist(name: str) -> None:
    head, *rest = name.split(".")
    if head == "settings":
        assert rest[0] in Settings.model_fields
        return
    value = VALUES[head]
    for part in rest:
        assert part in value
        value = value[part]
