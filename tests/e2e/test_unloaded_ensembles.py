"""What is under way in an ensemble is answered though it is unloaded, and its steps with it, wherever they run."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serving import Client, Server, infer_path, tensor

STEP = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }
instance_group { count: 8 kind: KIND_CPU }
parameters { key: "execute_delay_ms" value { string_value: "700" } }
parameters { key: "eagleray.placement" value { string_value: "isolated" } }
"""
ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step { model_name: "ENSEMBLE_first" model_version: -1
    input_map { key: "INPUT0" value: "X" } output_map { key: "OUTPUT0" value: "between" } }
  step { model_name: "ENSEMBLE_last" model_version: -1
    input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "Y" } }
}
"""
PLACED = 'parameters {{ key: "eagleray.placement" value {{ string_value: "{}" }} }}'
KINDS = {
    "copied": "",
    "isolated": PLACED.format("isolated"),
    "packed": PLACED.format("packed"),
    "embedded": PLACED.format("embedded"),
}
"""What makes an ensemble run in the ingresses, in a replica of its own, beside other models, or in the ingresses only."""
ASKED = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("unloaded")
    for kind, more in KINDS.items():
        write(root, kind, ENSEMBLE.replace("ENSEMBLE", kind) + more)
        for step in ("first", "last"):
            write(root, f"{kind}_{step}", STEP)
    flags = ("--model-control-mode", "explicit", "--num-cpus", "4", "--no-dashboard")
    started = Server(root, tmp_path_factory.mktemp("unloaded-log") / "log", *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def write(root: Path, name: str, config: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)


def control(server: Server, name: str, action: str, **parameters: bool) -> None:
    answer = server.post(f"/v2/repository/models/{name}/{action}", {"parameters": parameters})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("one_by_one", [False, True], ids=["with its steps", "one by one"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_under_way_is_answered(server: Server, kind: str, one_by_one: bool) -> None:
    control(server, kind, "load")

    def send(client: Client, number: int) -> None:
        client.send("POST", infer_path(kind), {"inputs": [tensor("X", "INT32", [1], [number])]})

    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(ASKED)]
        send(clients[0], 1)
        assert clients[0].receive().status == 200
        for number, client in enumerate(clients):
            send(client, number)
        if one_by_one:
            for name in (kind, f"{kind}_first", f"{kind}_last"):
                control(server, name, "unload")
        else:
            control(server, kind, "unload", unload_dependents=True)
        assert server.get(f"/v2/models/{kind}_last/ready").status == 400
        answers = [client.receive() for client in clients]
    assert [answer.body if answer.status != 200 else answer.json["outputs"][0]["data"] for answer in answers] == [
        [number] for number in range(ASKED)
    ]
