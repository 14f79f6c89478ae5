"""What models with replicas of their own have taken is answered after their unload, however long that takes."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import tritonclient.http as http_client

from tests.e2e.tagged_models import TAGGED_CONFIG, tag
from tests.serving import Client, Server, infer_path, tensor, wait_until

ISOLATED = 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }'
PARAMETER = 'parameters { key: "eagleray.%s" value { string_value: "%s" } }'
ALL = "version_policy { all {} }"
HELD = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        while os.path.exists(%r):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TAG", np.array([%d], np.int32))]) for _ in requests]
"""
ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step { model_name: "FIRST" model_version: 1 input_map { key: "X" value: "X" } output_map { key: "TAG" value: "between" } }
  step { model_name: "SECOND" model_version: 2 input_map { key: "X" value: "between" } output_map { key: "TAG" value: "TAG" } }
}
parameters { key: "eagleray.placement" value { string_value: "PLACEMENT" } }
"""
HELD_S = 12.0
"""Longer than a replica has for what is under way when Serve ends it."""
ASKED = 40


class Held:
    """A model with replicas of its own whose versions answer with their number, once they may."""

    def __init__(self, root: Path, name: str, versions: Sequence[int] = (1,), code: str = HELD) -> None:
        self._config = root / name / "config.pbtxt"
        self._gate = root.parent / f"{name}_waits"
        for version in versions:
            (root / name / str(version)).mkdir(parents=True)
            (root / name / str(version) / "model.py").write_text(code % (str(self._gate), version))
        self.configure(ALL)

    def configure(self, config: str) -> None:
        self._config.write_text(TAGGED_CONFIG + ISOLATED + config)

    def hold(self) -> None:
        self._gate.touch()

    def let_go(self) -> None:
        self._gate.unlink()


def write_ensemble(root: Path, name: str, first: str, second: str, placement: str = "packed") -> None:
    (root / name / "1").mkdir(parents=True)
    config = ENSEMBLE.replace("FIRST", first).replace("SECOND", second).replace("PLACEMENT", placement)
    (root / name / "config.pbtxt").write_text(config)


def send(stack: ExitStack, server: Server, name: str, count: int, version: str = "") -> list[Client]:
    clients = [stack.enter_context(server.client()) for _ in range(count)]
    for client in clients:
        client.send("POST", infer_path(name, version), {"inputs": [tensor("X", "INT32", [1], [0])]})
    return clients


def wait_inside(server: Server, *names: str) -> None:
    """Ask for statistics, which comes after what has been sent before, on every way that leads to the models."""
    for name in names:
        assert server.get(f"/v2/models/{name}/stats").status == 200


def tags(clients: Sequence[Client]) -> set[int | str]:
    answers = [client.receive() for client in clients]
    return {tag(answer) if answer.status == 200 else str(answer.body) for answer in answers}


def test_what_waits_is_answered_and_a_load_meanwhile_serves_in_the_replica_that_answers(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    """Beside it, an ensemble elsewhere is unloaded while a first step of it waits, and has a second one."""
    held, step = Held(repository, "held"), Held(repository, "held_step", (1, 2))
    write_ensemble(repository, "held_above", "held_step", "held_step")
    triton.load_model("held")
    triton.load_model("held_above")
    pids = server.replica_pids()
    held.hold()
    step.hold()
    with ExitStack() as stack:
        asking, above = send(stack, server, "held", ASKED), send(stack, server, "held_above", 2)
        wait_inside(server, "held", "held_above")
        triton.unload_model("held")
        triton.unload_model("held_above")
        assert server.get("/v2/models/held/ready").status == 400
        time.sleep(HELD_S)
        assert server.states("held") == {"1": ("UNLOADING", "unloaded")}
        triton.load_model("held")
        assert server.states("held") == {"1": ("READY", "")}
        assert server.replica_pids() >= pids
        triton.unload_model("held")
        assert server.states("held") == {"1": ("UNLOADING", "unloaded")}
        step.let_go()
        assert tags(above) == {2}
        held.let_go()
        assert tags(asking) == {1}
    wait_until(lambda: server.states("held") == {"1": ("UNAVAILABLE", "unloaded")}, "held is unloaded")
    wait_until(lambda: not server.replica_pids() >= pids, "its replica has ended")
    triton.load_model("held")
    with server.client() as client:
        assert client.infer("held", tensor("X", "INT32", [1], [0])).status == 200


def test_the_later_steps_of_an_ensemble_that_answers_stay_as_long(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    first = Held(repository, "held_first")
    Held(repository, "held_second", (1, 2))
    ensembles = {"packed": "held_above_in_a_group", "isolated": "held_above_alone"}
    for placement, name in ensembles.items():
        write_ensemble(repository, name, "held_first", "held_second", placement)
        triton.load_model(name)
    first.hold()
    with ExitStack() as stack:
        asking = [client for name in ensembles.values() for client in send(stack, server, name, 2)]
        wait_inside(server, *ensembles.values())
        for name in ensembles.values():
            triton.unload_model(name, unload_dependents=True)
        assert server.get("/v2/models/held_second/ready").status == 400
        time.sleep(HELD_S)
        first.let_go()
        assert tags(asking) == {2}
    gone = {version: ("UNAVAILABLE", "unloaded") for version in "12"}
    wait_until(lambda: server.states("held_second") == gone, "the second step is unloaded")


def test_a_version_that_goes_answers_beside_the_one_that_stays(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    held = Held(repository, "held_versions", (1, 2))
    triton.load_model("held_versions")
    held.hold()
    with ExitStack() as stack:
        first, second = (send(stack, server, "held_versions", 4, version) for version in "12")
        wait_inside(server, "held_versions")
        held.configure("")
        triton.load_model("held_versions")
        states = server.states("held_versions")
        assert states == {"1": ("UNLOADING", "unloaded"), "2": ("READY", "")}
        time.sleep(1.0)
        assert server.states("held_versions") == states
        held.let_go()
        assert (tags(first), tags(second)) == ({1}, {2})
    gone = {"1": ("UNAVAILABLE", "unloaded"), "2": ("READY", "")}
    wait_until(lambda: server.states("held_versions") == gone, "version 1 has gone")


def test_a_busy_replica_is_waited_for_though_the_other_is_idle(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    """Serve tells one replica after the other to load nothing, and has each off its list meanwhile."""
    held = Held(repository, "held_twice")
    held.configure(ALL + "".join(PARAMETER % each for each in (("replicas", "2"), ("num_cpus", "0.1"))))
    triton.load_model("held_twice")
    held.hold()
    with ExitStack() as stack:
        asking = send(stack, server, "held_twice", 1)
        wait_inside(server, "held_twice")
        triton.unload_model("held_twice")
        time.sleep(2.0)
        assert server.states("held_twice") == {"1": ("UNLOADING", "unloaded")}
        pids = server.replica_pids()
        triton.load_model("held_twice")
        assert server.replica_pids() >= pids, "it is not loaded in the replica that answers"
        held.let_go()
        assert tags(asking) == {1}


def test_what_takes_longer_than_a_replica_that_ends_has_goes_to_another(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    held = Held(repository, "held_fewer")
    cpus = PARAMETER % ("num_cpus", "0.1")
    held.configure(cpus + PARAMETER % ("replicas", "2"))
    triton.load_model("held_fewer")
    held.hold()
    with ExitStack() as stack:
        asking = send(stack, server, "held_fewer", 4)
        wait_inside(server, "held_fewer")
        held.configure(cpus)
        triton.load_model("held_fewer")
        time.sleep(HELD_S)
        held.let_go()
        assert tags(asking) == {1}
