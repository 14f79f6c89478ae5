"""What becomes of each model of a repository, the broken ones too."""

import json

import pytest

from tests.repositories import BROKEN, LOADABLE_EXAMPLE_VERSIONS, SMALL
from tests.serving import Answer, Server


def index(server: Server, body: object = None) -> list[dict[str, str]]:
    answer = server.post("/v2/repository/index", body)
    assert answer.status == 200
    return list(answer.json)


def test_every_good_model_version_is_ready(server: Server) -> None:
    ready = {(row["name"], row["version"]) for row in index(server) if row["state"] == "READY"}
    assert ready == LOADABLE_EXAMPLE_VERSIONS | {(name, "1") for name in SMALL}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_model_is_unavailable_with_its_reason(server: Server, name: str) -> None:
    (row,) = [row for row in index(server) if row["name"] == name]
    assert row["state"] == "UNAVAILABLE"
    assert BROKEN[name] in row["reason"]
    assert "Traceback" not in row["reason"]


@pytest.mark.parametrize("name", BROKEN)
def test_start_shows_each_broken_model_with_its_reason(server: Server, name: str) -> None:
    lines = [line for line in server.log().splitlines() if f" {name} " in line and "UNAVAILABLE" in line]
    assert any(BROKEN[name] in line for line in lines), server.log()


def test_start_shows_backend_placement_device_and_seconds_of_a_model(server: Server) -> None:
    placement = server.wait_for(r"floats 1: .*placement (\w+)")[1]
    line = server.wait_for(r"floats 1: .*state READY.*")[0]
    for part in ("backend onnxruntime", f"placement {placement}", "replicas 1", "device CPU", "seconds "):
        assert part in line


def test_index_of_ready_models_leaves_out_the_others(server: Server) -> None:
    names = {row["name"] for row in index(server, {"ready": True})}
    assert names == {name for name, _ in LOADABLE_EXAMPLE_VERSIONS} | set(SMALL)


def test_repository_name_in_the_path_is_ignored(server: Server) -> None:
    assert server.post("/v2/repository/anything/index").json == index(server)


def expect(answer: Answer, status: int, error: str) -> None:
    assert (answer.status, answer.error) == (status, error)
    assert len(answer.body) <= 1024


@pytest.mark.parametrize("body", [{"ready": 1}, {"ready": "yes"}, {"ready": None}], ids=json.dumps)
def test_index_refuses_what_is_no_boolean(server: Server, body: object) -> None:
    expect(server.post("/v2/repository/index", body), 400, "Invalid value for 'ready': expected a boolean")


@pytest.mark.parametrize("action", ["load", "unload"])
def test_models_cannot_be_loaded_or_unloaded_by_clients(server: Server, action: str) -> None:
    answer = server.post(f"/v2/repository/models/simple/{action}")
    expect(answer, 503, "explicit model load / unload is not allowed if polling is enabled")


def test_broken_model_answers_as_one_without_versions(server: Server) -> None:
    text = "Request for unknown model: 'broken_initialize' has no available versions"
    expect(server.get("/v2/models/broken_initialize"), 404, text)
    expect(server.infer("broken_initialize"), 404, text)
