"""Explicit mode: clients load, reload and unload models, and nobody who asks these models notices."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.checked_load import CheckedLoad, write_doubles
from tests.e2e.tagged_models import TAGGED_CONFIG, write_tagged
from tests.hostile.watch import grpc_address
from tests.repeating import asking
from tests.repositories import write_examples, write_small_models
from tests.serving import Answer, Client, Server, slower, tensor, title_of, wait_until

FLAGS = ("--model-control-mode", "explicit", "--num-cpus", "4", "--no-dashboard", "--cache-config", "local,size=65536")
PACKED_LOAD_S = 1.0
CHANGE_S = float(os.environ.get("CHANGE_SECONDS", "10"))
"""For how long many clients load and unload one model; `make soak` has a minute of it."""
ISOLATED_LOAD_S = 4.0

ALL = " version_policy { all {} }"
WHEN_LOADED = "__import__('time').monotonic_ns() // 1000 % 2**31"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_small_models(write_examples(tmp_path_factory.mktemp("controlled")))
    for name in ("tagged", "versions", "fragile", "switched"):
        write_tagged(root, name, "1")
    write_doubles(root, "doubles")
    write_tagged(root, "remembered", WHEN_LOADED, config="response_cache { enable: true }")
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("controlled-log") / "log"
    chosen = [word for pattern in ("hal*", "flags", "doubles") for word in ("--load-model", pattern)]
    started = Server(repository, log, *FLAGS, *chosen)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.fixture
def triton(server: Server) -> Iterator[http_client.InferenceServerClient]:
    with http_client.InferenceServerClient(server.address, network_timeout=60, connection_timeout=60) as client:
        yield client


def states(server: Server, name: str) -> dict[str, tuple[str, str]]:
    """Return state and reason of each version in the index; a model that was never loaded has none."""
    rows = [row for row in server.post("/v2/repository/index").json if row["name"] == name]
    assert rows, f"{name} is not in the index"
    return {row["version"]: (row["state"], row.get("reason", "")) for row in rows if "version" in row}


def ask(client: Client, name: str, version: str = "") -> Answer:
    return client.infer(name, tensor("X", "INT32", [1], [0]), version=version)


def tag(answer: Answer) -> int:
    return int(answer.json["outputs"][0]["data"][0])


class Asking:
    """Clients that ask one model all the time, and what they were told."""

    def __init__(self, server: Server, name: str, count: int = 4) -> None:
        self.answers: list[Answer] = []
        self.seconds: list[float] = []
        self._server = server
        self._name = name
        self._count = count

    def _ask(self, client: Client) -> None:
        started = time.monotonic()
        self.answers.append(ask(client, self._name))
        self.seconds.append(time.monotonic() - started)

    @contextmanager
    def running(self) -> Iterator["Asking"]:
        with asking(self._server, self._ask, self._count):
            wait_until(lambda: len(self.answers) > 20, "answers before the change")
            yield self
            count = len(self.answers)
            wait_until(lambda: len(self.answers) > count + 20, "answers after the change")

    def assert_served(self) -> None:
        assert {answer.status for answer in self.answers} == {200}, [
            answer.body for answer in self.answers if answer.status != 200
        ][:3]


def took_s(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def test_only_chosen_models_are_loaded_and_patterns_choose(server: Server) -> None:
    assert states(server, "halves") == {"1": ("READY", "")}
    assert states(server, "flags") == {"1": ("READY", "")}
    assert states(server, "simple") == {}
    assert server.get("/v2/health/ready").status == 200
    assert server.get("/v2/models/simple").error == "Request for unknown model: 'simple' is not found"


def test_models_come_and_go_by_http(server: Server, triton: http_client.InferenceServerClient) -> None:
    triton.load_model("floats")
    assert triton.is_model_ready("floats")
    assert states(server, "floats") == {"1": ("READY", "")}
    triton.unload_model("floats")
    assert not triton.is_model_ready("floats")
    wait_until(lambda: states(server, "floats") == {"1": ("UNAVAILABLE", "unloaded")}, "floats is unloaded")
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
    assert states(server, "sent") == {"3": ("READY", "")}
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
    (state, reason), *_ = states(server, "digits_pipeline").values()
    assert state == "UNAVAILABLE"
    assert reason.startswith("ensemble 'digits_pipeline' depends on 'digits' which has no loaded version.")
    assert triton.is_server_ready(), "nothing has failed"
    triton.load_model("digits")
    wait_until(lambda: triton.is_model_ready("digits_pipeline"), "the ensemble, when its step is back")
    triton.unload_model("digits_pipeline", unload_dependents=True)
    triton.unload_model("digits")


def test_a_reload_under_load_fails_no_request_and_the_new_answers_come_after_the_old(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    triton.load_model("tagged")
    with Asking(server, "tagged", count=1).running() as asked:
        for number in (2, 3):
            write_tagged(repository, "tagged", str(number))
            triton.load_model("tagged")
    asked.assert_served()
    tags = [tag(answer) for answer in asked.answers]
    assert tags == sorted(tags) and set(tags) == {1, 2, 3}


def test_a_new_version_is_ready_before_the_old_one_goes(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    triton.load_model("versions")
    with Asking(server, "versions", count=1).running() as asked:
        write_tagged(repository, "versions", "2", version=2)
        triton.load_model("versions")
        shutil.rmtree(repository / "versions/2")
        triton.load_model("versions")
    asked.assert_served()
    tags = [tag(answer) for answer in asked.answers]
    assert [number for number, before in zip(tags, [0, *tags], strict=False) if number != before] == [1, 2, 1]
    wait_until(lambda: states(server, "versions").get("2") == ("UNAVAILABLE", "unloaded"), "version 2 is unloaded")
    assert states(server, "versions")["1"] == ("READY", "")


@pytest.mark.parametrize("broken", ["nonesuch", "__import__('os').kill(__import__('os').getpid(), 9)"])
def test_what_served_serves_on_when_its_successor_does_not_load(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, broken: str
) -> None:
    write_tagged(repository, "fragile", "1")
    triton.load_model("fragile")
    dies = "kill" in broken
    with Asking(server, "fragile", count=0 if dies else 2).running() if not dies else _nobody() as asked:
        write_tagged(repository, "fragile", "2", version=2)
        write_tagged(repository, "fragile", broken, version=3, config="version_policy { all {} }")
        with pytest.raises(InferenceServerException) as failed:
            triton.load_model("fragile")
    assert str(failed.value.message()).startswith(
        "load failed for model 'fragile': version 3 is at UNAVAILABLE state: "
    )
    shutil.rmtree(repository / "fragile")
    if asked is not None:
        asked.assert_served()
        assert {tag(answer) for answer in asked.answers} == {1}
    with server.client() as client:
        assert tag(ask(client, "fragile")) == 1
    assert states(server, "fragile")["1"] == ("READY", "")


PLACED = 'parameters { key: "eagleray.placement" value { string_value: "%s" } }'
REPLICAS = 'parameters { key: "eagleray.replicas" value { string_value: "2" } }'
ISOLATED = PLACED % "isolated"
STAGED = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step {
    model_name: "%s" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "TAG" value: "TAG" }
  }
  max_inflight_requests: 8
}
"""


@pytest.mark.parametrize("config", ["", ISOLATED], ids=["packed", "isolated"])
def test_the_step_of_an_ensemble_gets_no_version_before_the_whole_load_has_succeeded(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, config: str
) -> None:
    step = "staged_away" if config else "staged"
    ensemble = f"{step}_ensemble"
    write_tagged(repository, step, "1", config=config)
    (repository / ensemble / "1").mkdir(parents=True)
    (repository / ensemble / "config.pbtxt").write_text(STAGED % step)
    triton.load_model(ensemble)
    with Asking(server, ensemble, count=1).running() as asked:
        write_tagged(repository, step, "2", version=2)
        write_tagged(repository, step, "__import__('time').sleep(2) or nonesuch", version=3, config=config + ALL)
        with pytest.raises(InferenceServerException, match="version 3 is at UNAVAILABLE state"):
            triton.load_model(step)
        write_tagged(repository, step, "3", version=3, config=config + ALL)
        failed_count = len(asked.answers)
        triton.load_model(step)
    asked.assert_served()
    tags = [tag(answer) for answer in asked.answers]
    assert set(tags[:failed_count]) == {1} and set(tags) == {1, 3} and tags == sorted(tags)


def test_a_model_that_is_loaded_in_another_place_answers_all_the_way(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    def load(number: str, config: str) -> None:
        write_tagged(repository, "wanders", number, config=config)
        triton.load_model("wanders")

    load("1", PLACED % "packed")
    with Asking(server, "wanders").running() as asked:
        for number, placement in enumerate(("isolated", "embedded", "isolated", "packed", "embedded", "packed"), 2):
            load(str(number), PLACED % placement)
            assert states(server, "wanders") == {"1": ("READY", "")}
        with pytest.raises(InferenceServerException, match="nonesuch"):
            load("nonesuch", PLACED % "isolated")
        load("8", REPLICAS)  # which `auto` isolates
    asked.assert_served()
    with server.client() as client:
        wait_until(lambda: {tag(ask(client, "wanders")) for _ in range(20)} == {8}, "no answers but the last place's")
    tags = {tag(answer) for answer in asked.answers}
    assert {1, 7} <= tags <= {*range(1, 9)}


def test_a_model_serves_on_where_it_is_when_another_place_cannot_have_it(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    write_tagged(repository, "stays", "1", config=PLACED % "packed")
    triton.load_model("stays")
    with Asking(server, "stays", count=1).running() as asked:
        write_tagged(repository, "stays", "nonesuch", config=PLACED % "isolated")
        with pytest.raises(InferenceServerException, match="nonesuch"):
            triton.load_model("stays")
        assert states(server, "stays") == {"1": ("READY", "")}
    asked.assert_served()
    assert {tag(answer) for answer in asked.answers} == {1}


@contextmanager
def _nobody() -> Iterator[None]:
    yield None


def test_instances_and_versions_change_in_place(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    """Another version policy leaves what serves alone; other instances are ready before the old ones go."""
    write_tagged(repository, "switched", "__import__('random').randrange(1 << 30)")
    triton.load_model("switched")
    with server.client() as client:
        before = tag(ask(client, "switched"))
        write_tagged(repository, "switched", "7", version=2, config="version_policy { specific { versions: [1, 2] } }")
        triton.load_model("switched")
        assert tag(ask(client, "switched", "1")) == before
        assert tag(ask(client, "switched")) == 7
        policy = "version_policy { specific { versions: 1 } }"
        (repository / "switched/config.pbtxt").write_text(TAGGED_CONFIG + policy)
        triton.load_model("switched")
        wait_until(lambda: tag(ask(client, "switched")) == before, "an answer of the process that served before")
        group = "instance_group { count: 2 kind: KIND_CPU }"
        (repository / "switched/config.pbtxt").write_text(TAGGED_CONFIG + policy + group)
        with Asking(server, "switched").running() as asked:
            triton.load_model("switched")
            wait_until(lambda: len({tag(answer) for answer in asked.answers[-100:]} - {before}) == 2, "two instances")
        asked.assert_served()
        assert triton.get_model_config("switched")["instance_group"][0]["count"] == 2


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


def test_many_clients_at_once_end_in_the_state_of_the_last_command(server: Server) -> None:
    ended: list[tuple[float, bool]] = []
    stop_s = time.monotonic() + CHANGE_S

    def change(number: int) -> None:
        loads = number % 2 == 0
        with server.client() as client:
            while time.monotonic() < stop_s:
                answer = client.request("POST", f"/v2/repository/models/simple/{'load' if loads else 'unload'}")
                assert answer.status == 200, answer.body
                ended.append((time.monotonic(), loads))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(64)]
    with CheckedLoad(int(server.address.rpartition(":")[2]), "doubles", 200).running() as outcome:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    print(f"{len(ended)} commands of 64 clients: {outcome}")
    assert outcome.sent == len(outcome.answered), outcome
    assert len(ended) >= 64
    _, loaded = max(ended)
    wait_until(
        lambda: states(server, "simple")["1"][0] == ("READY" if loaded else "UNAVAILABLE"), "the last command", 90
    )
    assert (server.get("/v2/models/simple/ready").status == 200) == loaded


CONTROLLER = "ray::ServeReplica:eagleray:RepositoryController"
STEPS_S = [float(step) for step in os.environ.get("CONTROLLER_DIES_AFTER_S", "0.03").split()]
"""When the controller dies after a command was sent: before it is stored, while it is carried out, and after.

`make soak` has more of them.
"""


def kill_controller(server: Server) -> None:
    for process in server.descendants():
        if title_of(process).startswith(CONTROLLER):
            process.kill()


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
        timer = threading.Timer(after_s, kill_controller, [server])
        for thread in (*threads, timer):
            thread.start()
        for thread in (*threads, timer):
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    asked.assert_served()
    undone.assert_served()
    assert {tag(answer) for answer in undone.answers} == {1}
    assert len(failures) == 1 and failures[0].startswith("load failed for model 'undone': version 1 is at UNAVAILABLE")
    wait_until(lambda: states(server, "simple") == {"1": ("READY", "")}, "simple is loaded")
    wait_until(lambda: states(server, "floats") == {"1": ("UNAVAILABLE", "unloaded")}, "floats is unloaded")
    with server.client() as client:
        assert tag(ask(client, "tagged")) == 11
    assert server.get("/v2/health/ready").status == 200


def triton_of(server: Server) -> http_client.InferenceServerClient:
    return http_client.InferenceServerClient(server.address, network_timeout=60, connection_timeout=60)


@pytest.mark.parametrize("placement", ["auto", "isolated"])
def test_an_ensemble_answers_all_the_way_while_its_step_is_loaded_in_other_places(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, placement: str
) -> None:
    step, ensemble = f"moves_below_{placement}", f"above_{placement}"
    write_tagged(repository, step, "1", config=PLACED % "packed")
    (repository / ensemble / "1").mkdir(parents=True)
    config = (STAGED % step).replace("max_inflight_requests: 8", "")
    (repository / ensemble / "config.pbtxt").write_text(config + (PLACED % placement if placement != "auto" else ""))
    triton.load_model(ensemble)
    with Asking(server, ensemble).running() as asked:
        for number, place in enumerate(("isolated", "packed", "embedded", "isolated", "embedded", "packed"), 2):
            write_tagged(repository, step, str(number), config=PLACED % place)
            triton.load_model(step)
    asked.assert_served()
    with server.client() as client:
        wait_until(lambda: {tag(ask(client, ensemble)) for _ in range(20)} == {7}, "no answers but the last place's")
