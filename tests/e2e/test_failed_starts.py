"""A model that did not load at the start is tried again when it is loaded, wherever it has its place."""

from pathlib import Path

import pytest

from tests.e2e.tagged_models import write_tagged
from tests.serving import Server, tensor

NAMES = ("packed", "isolated")
FLAGS = (
    *("--model-control-mode", "explicit", "--load-model", "*", "--strict-readiness=false"),
    *("--num-cpus", "3", "--no-dashboard", "--ingresses-per-node", "1"),
)
X = tensor("X", "INT32", [1], [1])


@pytest.mark.timeout(300)
def test_a_model_that_failed_at_the_start_is_loaded_once_it_can_be(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name in NAMES:
        placed = f'parameters {{ key: "eagleray.placement" value {{ string_value: "{name}" }} }}'
        write_tagged(repository, name, "nonesuch", config=placed)
    server = Server(repository, tmp_path / "log", *FLAGS)
    try:
        server.wait_ready()
        for name in NAMES:
            refused = server.post(f"/v2/repository/models/{name}/load")
            assert (refused.status, "name 'nonesuch' is not defined" in refused.json["error"]) == (400, True)
            module = repository / name / "1/model.py"
            module.write_text(module.read_text().replace("nonesuch", "7"))
            assert server.post(f"/v2/repository/models/{name}/load").status == 200
            assert server.infer(name, X).json["outputs"][0]["data"] == [7]
        server.stop()
    finally:
        server.kill()
