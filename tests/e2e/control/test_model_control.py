"""Explicit mode: what clients may say, and what the repository is after it."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.checked_load import CheckedLoad
from tests.e2e.tagged_models import WHEN_LOADED, Asking, ask, tag, write_tagged
from tests.hostile.watch import grpc_address
from tests.serving import Client, Server, slower, tensor, title_of, wait_until

PACKED_LOAD_S = 1.0
ISOLATED_LOAD_S = 4.0
CHANGE_S = float(os.environ.get("CHANGE_SECONDS", "10"))
"""For how long many clients load and unload one model; `make soak` has a minute of it."""
STEPS_S = [float(step) for step in os.environ.get("CONTROLLER_DIES_AFTER_S", "0.03").split()]
"""When the controller dies after a command was sent: before it is stored, while it is carried out, and after.

`make soak` has more of them.
"""


def took_s(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def test_only_chosen_models_are_loaded_and_patterns_choose(server: Server) -> None:
    assert server.states("halves") == {"1": ("READY", "")}
    assert server.states("flags") == {"1": ("READY", "")}
    assert server.states("simple") == {}
    assert server.get("/v2/health/ready").status == 200
    assert server.get("/v2/models/simple").error == "Request for unknown model: 'simple' is not found"


def test_models_come_and_go_by_http(server: Server, triton: http_client.InferenceServerClient) -> None:
    triton.load_model("floats")
    assert triton.is_model_ready("floats")
    assert server.states("floats") == {"1": ("READY", "")}
    triton.unload_model("floats")
    assert not triton.is_model_ready("floats")
    wait_until(lambda: server.states("floats") == {"1": ("UNAVAILABLE", "unloaded")}, "floats is unloaded")
    answer = server.infer("floats", tensor("X", "FP32", [1], [1]))
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'floats' has no available versions")
    assert server.get("/v2/health/ready").status == 200
    triton.unload_model("floats")
    triton.unload_model("never_heard_of")


def test_models_come_and_go_by_grpc(server: Server) -> None:
    with grpc_client.InferenceServerClient(grpc_address(server.log())) as client:
        client.load_model("strings")
        assert client.is_model_ready("strings")
        rows = {model.name: model.state for model in client.get_model_repository_index().models}
        assert (rows["strings"], rows["async_model"]) == ("READY", "")
        with pytest.raises(InferenceServerException, match="failed to poll from model repository"):
            client.load_model("nonesuch")
        client.unload_model("strings")
        assert not client.is_model_ready("strings")
        assert not client.is_model_ready("nonesuch")


def test_a_model_that_is_loaded_anew_forgets_what_it_has_answered(
    server: Server, triton: http_client.InferenceServerClient, repository: Path
) -> None:
    """It says when it was loaded; once it is only unloaded, once its files change."""

    def answer() -> int:
        with server.client() as client:
            (found,) = {tag(ask(client, "remembered")) for _ in range(3)}
        return found

    def hits() -> int:
        return int(server.statistics("remembered", 1)["inference_stats"]["cache_hit"]["count"])

    triton.load_model("remembered")
    first, before = answer(), hits()
    triton.unload_model("remembered")
    triton.load_model("remembered")
    second = answer()
    write_tagged(repository, "remembered", WHEN_LOADED + " ", config="response_cache { enable: true }")
    triton.load_model("remembered")
    assert len({first, second, answer()}) == 3
    assert (before, hits()) == (2, 6)


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("nope/load", None, 500, "failed to load 'nope', failed to poll from model repository"),
        ("%20/load", None, 400, "Model name cannot be empty. Please enter a valid name to deploy."),
        (
            "..%2Fx/load",
            None,
            400,
            "invalid model name '../x', model name must not contain path traversal characters",
        ),
        ("simple/load", {"parameters": {"other": 1}}, 500, "unexpected error on creating Triton parameter"),
        (
            "simple/load",
            {"parameters": {"file:1/model.onnx": ""}},
            500,
            "Load parameter 'config' must be specified for model file override",
        ),
        (
            "simple/load",
            {"parameters": {"config": "{}", "file:../model.onnx": ""}},
            400,
            "Invalid file parameter 'file:../model.onnx': the path must stay within model directory.",
        ),
    ],
    ids=["unknown", "blank", "traversal", "parameter", "file without config", "file outside"],
)
def test_refusals_have_tritons_texts(server: Server, path: str, body: Any, status: int, error: str) -> None:
    answer = server.post(f"/v2/repository/models/{path}", body)
    assert (answer.status, answer.error) == (status, error)


def test_config_and_files_of_a_client_take_the_place_of_the_repositorys(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    tensors = '"input":[{"name":"X","data_type":"TYPE_FP32","dims":[-1]}],"output":[{"name":"Y","data_type":"TYPE_FP32","dims":[-1]}]'
    config = '{"backend":"onnxruntime",%s,"parameters":{"mine":{"string_value":"%s"}}}'
    triton.load_model("floats", config=config % (tensors, "config"))
    assert triton.get_model_config("floats")["parameters"]["mine"]["string_value"] == "config"
    triton.load_model("floats")
    assert "mine" not in triton.get_model_config("floats")["parameters"]

    onnx = (repository / "floats/1/model.onnx").read_bytes()
    triton.load_model("sent", config=config % (tensors, "files"), files={"file:3/model.onnx": onnx})
    assert server.states("sent") == {"3": ("READY", "")}
    assert server.infer("sent", tensor("X", "FP32", [2], [1, 2])).json["outputs"][0]["data"] == [1, 2]
    with pytest.raises(InferenceServerException, match="failed to load 'floats', Invalid config override: "):
        triton.load_model("floats", config='{"nonesuch": 1}')
    good = (repository / "floats/config.pbtxt").read_text()
    (repository / "floats/config.pbtxt").write_text(good + "nonesuch {")
    with pytest.raises(InferenceServerException, match="load failed for model 'floats'"):
        triton.load_model("floats")
    assert server.infer("floats", tensor("X", "FP32", [2], [1, 2])).status == 200
    (repository / "floats/config.pbtxt").write_text(good)
    triton.unload_model("sent")
    assert not (repository / "sent").exists()


def test_an_ensemble_brings_its_steps_and_takes_along_those_that_nobody_else_needs(
    server: Server, triton: http_client.InferenceServerClient
) -> None:
    triton.load_model("digits_pipeline")
    for step in ("digits_preprocess", "digits", "digits_postprocess"):
        assert triton.is_model_ready(step)
    triton.load_model("digits")  # now somebody has asked for it by name
    triton.unload_model("digits_pipeline", unload_dependents=True)
    assert triton.is_model_ready("digits")
    for name in ("digits_pipeline", "digits_preprocess", "digits_postprocess"):
        assert not triton.is_model_ready(name)
    triton.load_model("digits_pipeline")
    triton.unload_model("digits")
    (state, reason), *_ = server.states("digits_pipeline").values()
    assert state == "UNAVAILABLE"
    assert reason.startswith("ensemble 'digits_pipeline' depends on 'digits' which has no loaded version.")
    assert triton.is_server_ready(), "nothing has failed"
    triton.load_model("digits")
    wait_until(lambda: triton.is_model_ready("digits_pipeline"), "the ensemble, when its step is back")
    triton.unload_model("digits_pipeline", unload_dependents=True)
    triton.unload_model("digits")


@pytest.mark.parametrize(("placement", "floor_s"), [("packed", PACKED_LOAD_S), ("isolated", ISOLATED_LOAD_S)])
def test_loading_one_small_model_is_quick(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, placement: str, floor_s: float
) -> None:
    name = f"quick_{placement}"
    shutil.copytree(repository / "simple", repository / name)
    config = (repository / "simple/config.pbtxt").read_text().replace("simple", name)
    parameter = f'parameters {{ key: "eagleray.placement" value {{ string_value: "{placement}" }} }}'
    (repository / name / "config.pbtxt").write_text(f"{config}\n{parameter}")

    def load() -> None:
        triton.load_model(name)
        # An ingress of a busy machine may take longer to reach a replica than a load waits for it.
        wait_until(lambda: triton.is_model_ready(name), f"{name} is ready", poll_s=0.01)

    replica = f"ray::ServeReplica:{name}:"
    load()
    seconds = []
    for _ in range(3):
        triton.unload_model(name)
        wait_until(lambda: not any(title_of(each).startswith(replica) for each in server.descendants()), "its end")
        seconds.append(took_s(load))
    triton.unload_model(name)
    print(f"{placement}: {[round(each, 2) for each in seconds]} s")
    assert min(seconds) <= floor_s * slower()


def test_many_clients_at_once_end_in_one_state_and_the_next_command_decides(server: Server) -> None:
    """Commands are carried out in turn; which was the last is not told by their answers, which overtake each other."""
    answered: list[bool] = []
    slowness = slower()
    stop_s = time.monotonic() + CHANGE_S

    def command(client: Client, loads: bool) -> None:
        answer = client.request("POST", f"/v2/repository/models/simple/{'load' if loads else 'unload'}")
        assert answer.status == 200, answer.body

    def change(number: int) -> None:
        loads = number % 2 == 0
        with Client(server.address, 60 * slowness) as client:
            while time.monotonic() < stop_s:
                command(client, loads)
                answered.append(loads)

    def is_ready() -> bool:
        return server.get("/v2/models/simple/ready").status == 200

    def has_settled() -> bool:
        return server.states("simple")["1"][0] == ("READY" if is_ready() else "UNAVAILABLE")

    threads = [threading.Thread(target=change, args=(number,)) for number in range(64)]
    with CheckedLoad(int(server.address.rpartition(":")[2]), "doubles", 200 / slowness).running() as outcome:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120 * slowness)
    print(f"{answered.count(True)} loads and {answered.count(False)} unloads of 64 clients: {outcome}")
    assert outcome.sent == len(outcome.answered), outcome
    assert len(answered) >= 64
    wait_until(has_settled, "the end of loading and unloading", 90)
    loaded = is_ready()
    with server.client() as client:
        for loads in (not loaded, loaded):
            command(client, loads)
            assert is_ready() == loads
            wait_until(has_settled, "the last command")


@pytest.mark.parametrize("after_s", STEPS_S)
@pytest.mark.timeout(900)
def test_what_the_controller_was_told_happens_though_it_dies_on_the_way(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, after_s: float
) -> None:
    write_tagged(repository, "tagged", "10")
    triton.load_model("tagged")
    write_tagged(repository, "undone", "1")
    triton.load_model("undone")
    triton.unload_model("simple")
    triton.load_model("floats")
    failures: list[str] = []

    def load_what_fails() -> None:
        try:
            triton_of(server).load_model("undone")
        except InferenceServerException as error:
            failures.append(str(error.message()))

    with Asking(server, "tagged", count=1).running() as asked, Asking(server, "undone", count=1).running() as undone:
        write_tagged(repository, "tagged", "11")
        write_tagged(repository, "undone", "nonesuch")
        commands: list[Callable[[], Any]] = [
            lambda: triton_of(server).load_model("tagged"),
            lambda: triton_of(server).load_model("simple"),
            lambda: triton_of(server).unload_model("floats"),
            load_what_fails,
        ]
        threads = [threading.Thread(target=command) for command in commands]
        timer = threading.Timer(after_s, server.kill_controller)
        for thread in (*threads, timer):
            thread.start()
        for thread in (*threads, timer):
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    asked.assert_served()
    undone.assert_served()
    assert {tag(answer) for answer in undone.answers} == {1}
    assert len(failures) == 1 and failures[0].startswith("load failed for model 'undone': version 1 is at UNAVAILABLE")
    wait_until(lambda: server.states("simple") == {"1": ("READY", "")}, "simple is loaded")
    wait_until(lambda: server.states("floats") == {"1": ("UNAVAILABLE", "unloaded")}, "floats is unloaded")
    with server.client() as client:
        assert tag(ask(client, "tagged")) == 11
    assert server.get("/v2/health/ready").status == 200


def triton_of(server: Server) -> http_client.InferenceServerClient:
    return http_client.InferenceServerClient(server.address, network_timeout=60, connection_timeout=60)
