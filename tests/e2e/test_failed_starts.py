"""What did not load is tried again: when it is loaded, and by itself where it had been loaded before.

The ingress and the controller die while the server starts, which goes on.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.tagged_models import write_tagged
from tests.serving import CONTROLLER, Server, tensor, title_of, wait_until

NAMES = ("packed", "isolated")
HINDERED = {"of_a_group": "packed", "of_the_ingress": "embedded", "asked_for": "packed"}
FLAGS = (
    *("--model-control-mode", "explicit", "--load-model", "*", "--strict-readiness=false"),
    *("--num-cpus", "3", "--no-dashboard", "--ingresses-per-node", "1"),
)
INGRESS = "ray::ServeReplica:eagleray:Ingress"
PACKED = "ray::ServeReplica:eagleray-packed"
X = tensor("X", "INT32", [1], [1])


def kill(server: Server, *titles: str) -> None:
    for process in server.descendants():
        if title_of(process).startswith(titles):
            process.kill()


def placed(placement: str) -> str:
    return f'parameters {{ key: "eagleray.placement" value {{ string_value: "{placement}" }} }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("failed")
    repository = folder / "models"
    for name in NAMES:
        write_tagged(repository, name, "nonesuch", config=placed(name))
    for name, placement in HINDERED.items():
        number = f"8 if not __import__('os').path.exists({str(folder / 'hindrance')!r}) else no_way"
        write_tagged(repository, name, number, config=placed(placement))
    started = Server(repository, folder / "log", *FLAGS)
    try:
        started.wait_for("state LOADING")
        kill(started, INGRESS, CONTROLLER)
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.mark.timeout(300)
def test_a_model_that_failed_at_the_start_is_loaded_once_it_can_be(server: Server) -> None:
    for name in NAMES:
        refused = server.post(f"/v2/repository/models/{name}/load")
        assert (refused.status, "name 'nonesuch' is not defined" in refused.json["error"]) == (400, True)
        module = server.repository / name / "1/model.py"
        module.write_text(module.read_text().replace("nonesuch", "7"))
        assert server.post(f"/v2/repository/models/{name}/load").status == 200
        assert server.infer(name, X).json["outputs"][0]["data"] == [7]


@pytest.mark.timeout(300)
def test_a_model_that_fails_in_a_new_process_is_tried_again_there(server: Server) -> None:
    names = list(HINDERED)
    assert [server.infer(name, X).status for name in names] == [200] * 3
    hindrance = server.repository.parent / "hindrance"
    hindrance.touch()
    kill(server, INGRESS, PACKED)

    def failed() -> bool:
        try:
            return all("'no_way' is not defined; it is tried again" in server.states(name)["1"][1] for name in names)
        except OSError:  # no ingress yet
            return False

    wait_until(failed, "all failed in the new processes", 60)
    refused = [server.infer(name, X) for name in names]
    assert [(each.status, each.headers["retry-after"]) for each in refused] == [(503, "1")] * 3
    load = "/v2/repository/models/asked_for/load"
    asked = server.post(load)
    assert (asked.status, "'no_way' is not defined" in asked.json["error"]) == (400, True)
    hindrance.unlink()
    assert server.post(load).status == 200
    wait_until(lambda: [server.infer(name, X).status for name in names] == [200] * 3, "they are back", 60)
    wait_until(lambda: [server.states(name)["1"] for name in names] == [("READY", "")] * 3, "they are READY", 30)
