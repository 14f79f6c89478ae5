"""An embedded model that loads later, or not at all, in one of the two ingresses of a node."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.tagged_models import TAGGED_CONFIG, ask, write_tagged
from tests.e2e.test_several_ingresses import holder, one_client_of_each
from tests.repeating import repeating
from tests.serving import Client, Server, title_of, wait_until

FLAGS = ("--model-control-mode", "explicit", "--ingresses-per-node", "2", "--num-cpus", "3", "--no-dashboard")
PLACED = 'parameters {{ key: "eagleray.placement" value {{ string_value: "{}" }} }}'
EMBEDDED = PLACED.format("embedded")
UNEVEN = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        if os.getppid() != {quick}:
            time.sleep(3.0)
        if os.getppid() == {hindered}:
            raise RuntimeError("no disk")

    def execute(self, requests):
        tags = [pb_utils.Tensor("TAG", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse(output_tensors=[tag]) for tag in tags]
"""
"""Takes longer to load in all ingresses but one, and fails in one."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "models").mkdir()
    started = Server(folder / "models", folder / "log", *FLAGS)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def write_uneven(repository: Path, quick: int, hindered: int = 0, name: str = "uneven") -> None:
    (repository / f"{name}/1").mkdir(parents=True, exist_ok=True)
    (repository / f"{name}/config.pbtxt").write_text(TAGGED_CONFIG + EMBEDDED)
    (repository / f"{name}/1/model.py").write_text(UNEVEN.format(quick=quick, hindered=hindered))


def load(client: Client, model: str) -> None:
    assert client.request("POST", f"/v2/repository/models/{model}/load").status == 200


def state(client: Client, model: str) -> tuple[str, str]:
    (row,) = [row for row in client.request("POST", "/v2/repository/index").json if row["name"] == model]
    return row["state"], row.get("reason", "")


def test_an_embedded_model_is_ready_at_all_ingresses_when_its_load_is_answered(server: Server) -> None:
    with one_client_of_each(server, server.address) as clients:
        write_uneven(server.repository, holder(server, clients[0]))
        load(clients[0], "uneven")
        answers = [client.get("/v2/models/uneven/ready").status for client in clients]
        answers += [ask(client, "uneven").status for client in clients]
        assert answers == [200, 200, 200, 200]
    assert server.post("/v2/repository/models/uneven/unload").status == 200


def test_a_model_that_goes_into_the_ingresses_serves_at_each_until_it_has_loaded_it(server: Server) -> None:
    """Also at the one that takes seconds longer to load it."""
    write_tagged(server.repository, "goes", "1", config=PLACED.format("isolated"))
    with one_client_of_each(server, server.address) as clients, server.client() as commanding:
        load(commanding, "goes")
        write_uneven(server.repository, holder(server, clients[0]), name="goes")
        seen: list[int] = []
        with repeating(
            *(lambda client=client: seen.append(ask(client, "goes").status) for client in clients), pause_s=0.02
        ):
            load(commanding, "goes")
            wait_until(lambda: not any(":goes:" in title_of(each) for each in server.descendants()), "its former place")
            count = len(seen)
            wait_until(lambda: len(seen) > count + 20, "answers of the ingresses alone")
        assert set(seen) == {200}
    assert server.post("/v2/repository/models/goes/unload").status == 200


@pytest.mark.timeout(300)
def test_an_embedded_model_serves_where_it_has_loaded_and_says_where_it_has_not(server: Server) -> None:
    write_tagged(server.repository, "beside", "1", config=EMBEDDED)
    with one_client_of_each(server, server.address) as (one, other):
        hindered = holder(server, other)
        write_uneven(server.repository, holder(server, one), hindered)
        load(one, "uneven")
        wait_until(lambda: state(one, "uneven")[1], "what the other ingress has told")
        for _ in range(2):
            shown, reason = state(one, "uneven")
            assert (shown, "failed to load in 1 of 2 ingresses" in reason, "no disk" in reason) == ("READY", True, True)
            shown, reason = state(other, "uneven")
            assert (shown, "no disk" in reason) == ("UNAVAILABLE", True)
            assert [each.get("/v2/models/uneven/ready").status for each in (one, other)] == [200, 400]
            assert [ask(each, "uneven").status for each in (one, other)] == [200, 503]
            load(one, "beside")  # of which both tell, and of all else that they host
        psutil.Process(hindered).kill()
        wait_until(lambda: state(one, "uneven") == ("READY", ""), "the death of the other ingress", 60)
    with server.client() as client:
        wait_until(lambda: client.get("/v2/health/ready").status == 200, "the new one", 60)
