"""Where a model's configuration is completed, as far as that can be said without a cluster."""

import json
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.control import node_completion
from deployments.control.node_completion import NodeCompleter, possible_nodes
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.waits import longest_wait
from tests.serving import environment, run

HEAD = NodeFacts(4, node_id="head")
CARD = NodeFacts(4, 1, accelerator_type="A100", node_id="card")
EAST = NodeFacts(4, labels=(("zone", "east"),), node_id="east")
LARGE = NodeFacts(8, node_id="large")
LABEL = 'parameters { key: "eagleray.node_labels" value { string_value: "zone=east" } }'


@pytest.mark.parametrize(
    ("nodes", "text", "expected"),
    [
        ((HEAD, EAST), "", ["head", "east"]),
        ((HEAD, EAST), LABEL, ["east"]),
        ((HEAD, CARD), "", ["card"]),
        ((HEAD, CARD), "instance_group { kind: KIND_CPU }", ["head", "card"]),
        ((HEAD, CARD), "instance_group { kind: KIND_GPU passive: true } instance_group { kind: KIND_CPU }", 2),
        ((HEAD, CARD), "instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", ["card"]),
        ((HEAD, CARD), "instance_group { kind: KIND_MODEL }", ["card"]),
        ((HEAD, CARD), LABEL, []),
        ((HEAD, LARGE), 'parameters { key: "eagleray.num_cpus" value { string_value: "6" } }', ["large"]),
        ((HEAD, CARD), 'parameters { key: "eagleray.num_cpus" value { string_value: "many" } }', 2),
    ],
)
def test_it_may_run_where_its_configuration_lets_it(
    nodes: tuple[NodeFacts, ...], text: str, expected: list[str] | int
) -> None:
    config = text_format.Parse(f'name: "m" backend: "python" {text}', ModelConfig())
    found = [node.node_id for node in possible_nodes(config, ClusterFacts(nodes))]
    assert (len(found) if isinstance(expected, int) else found) == expected


def test_without_a_node_that_it_may_run_on_it_is_asked_here(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    file = tmp_path / "m/1/model.py"
    file.write_text("class TritonPythonModel:\n    def execute(self, requests): ...\n")
    config = text_format.Parse(f'name: "m" backend: "python" {LABEL}', ModelConfig())
    completer = NodeCompleter(ClusterFacts((HEAD,)))
    assert completer(config, str(tmp_path / "m"), str(tmp_path / "m/1"), str(file)) == config


def test_it_is_known_for_which_model_the_reading_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def complete(config: ModelConfig, *paths: str) -> ModelConfig:
        seen.append(longest_wait(0.0))
        raise ModelLoadError("no")

    monkeypatch.setattr(node_completion, "complete", complete)
    with pytest.raises(ModelLoadError):
        NodeCompleter(ClusterFacts(()))(ModelConfig(name="m"), "/m", "/m/1", "/m/1/model.py")
    assert [*seen, longest_wait(0.0)] == ["running auto_complete_config of model 'm'", ""]


ON_A_NODE = """
import json, os, sys
from pathlib import Path

os.environ["EAGLERAY_TEST_ZONE"] = "there"
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
del os.environ["EAGLERAY_TEST_ZONE"]

from tritonclient.grpc.model_config_pb2 import ModelConfig
from deployments.backends.backend import ModelLoadError
from deployments.control.node_completion import complete_there
from deployments.replica.kept_files import KeptFiles
from deployments.replica.override_files import OverrideFiles
from deployments.serve_internals import ClusterTable

CODE = '''
import os
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": os.environ["EAGLERAY_TEST_ZONE"], "data_type": "TYPE_INT32", "dims": [1]})
        if config.as_dict()["name"] == "failing":
            raise ValueError("no such weights")
        return config
    def execute(self, requests): ...
'''

def complete(root):
    config = ModelConfig(name=Path(root).name, backend="python")
    paths = root, f"{root}/1", f"{root}/1/model.py"
    node = ray.get_runtime_context().get_node_id()
    try:
        return complete_there(node, "tests", config, *paths).output[0].name
    except ModelLoadError as error:
        return str(error)

told = []
for name in ("in_a_folder", "failing"):
    file = Path(sys.argv[1], name, "1/model.py")
    file.parent.mkdir(parents=True)
    file.write_text(CODE)
    told.append(complete(str(Path(sys.argv[1], name))))
sent = OverrideFiles(Path(sys.argv[1], "here"), KeptFiles(ClusterTable(), "tests"))
told.append(complete(sent.write("sent", {"file:1/model.py": CODE.encode()})))
ray.shutdown()
print(json.dumps(told))
"""


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_node_completes_with_its_own_files_and_variables(tmp_path: Path) -> None:
    """In a folder, with a reason, and of files that a client sent and that the node has to fetch."""
    done = run(sys.executable, "-c", ON_A_NODE, str(tmp_path), env=environment(), timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["there", "ValueError: no such weights", "there"]
