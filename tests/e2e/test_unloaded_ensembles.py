"""What is under way in an ensemble is answered though it is unloaded, or its steps are, wherever they run."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serving import Client, Server, infer_path, tensor

STEP = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }
instance_group { count: 4 kind: KIND_CPU }
parameters { key: "execute_delay_ms" value { string_value: "600" } }
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
    "copied": ("", "isolated"),
    "alone": ("isolated", "packed"),
    "packed": ("packed", "isolated"),
    "embedded": ("embedded", "packed"),
    "together": ("packed", "packed"),
    "inside": ("embedded", "embedded"),
    "nested": ("isolated", "packed"),
}
"""Where an ensemble and its steps run; with nothing said, an ensemble of steps elsewhere runs in the ingresses too.

The last step of `nested` is an ensemble.
"""
ASKED = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("unloaded")
    for kind, (place, steps) in KINDS.items():
        write(root, kind, ENSEMBLE.replace("ENSEMBLE", kind) + (PLACED.format(place) if place else ""))
        for step in ("first", "last"):
            write(root, f"{kind}_{step}", STEP + PLACED.format(steps))
    inner = ENSEMBLE.replace("ENSEMBLE", "nested_last").replace('"X"', '"INPUT0"').replace('"Y"', '"OUTPUT0"')
    write(root, "nested_last", inner + PLACED.format("packed"))
    for step in ("first", "last"):
        write(root, f"nested_last_{step}", STEP + PLACED.format("packed"))
    # A second is the least for which steps stay; some requests need their last step later.
    flags = ("--model-control-mode", "explicit", "--num-cpus", "4", "--no-dashboard", "--exit-timeout-secs", "1")
    started = Server(root, tmp_path_factory.mktemp("unloaded-log") / "log", *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def write(root: Path, name: str, config: str) -> None:
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)


def control(server: Server, name: str, action: str, **parameters: bool) -> None:
    answer = server.post(f"/v2/repository/models/{name}/{action}", {"parameters": parameters})
    assert answer.status == 200, answer.body


WAYS = {
    "with its steps": ("{}",),
    "one by one": ("{}", "{}_first", "{}_last"),
    "its last step": ("{}_last",),
}
CASES = [(kind, way) for kind in KINDS for way in WAYS if way != "one by one" or kind in ("copied", "alone")]


@pytest.mark.parametrize(("kind", "way"), CASES, ids=map(": ".join, CASES))
def test_what_is_under_way_is_answered(server: Server, kind: str, way: str) -> None:
    control(server, kind, "load")

    def send(client: Client, number: int) -> None:
        client.send("POST", infer_path(kind), {"inputs": [tensor("X", "INT32", [1], [number])]})

    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(ASKED)]
        send(clients[0], 1)
        assert clients[0].receive().status == 200
        for number, client in enumerate(clients):
            send(client, number)
        for name in WAYS[way]:
            control(server, name.format(kind), "unload", unload_dependents=way == "with its steps")
        assert server.get(f"/v2/models/{kind}_last/ready").status == 400
        answers = [client.receive() for client in clients]
    assert [answer.body if answer.status != 200 else answer.json["outputs"][0]["data"] for answer in answers] == [
        [number] for number in range(ASKED)
    ]
