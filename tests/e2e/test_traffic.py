"""The versions of a model share the requests that name none, on both ingresses of a node, by every way to ask."""

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
from click.testing import CliRunner, Result

from app.cli.main import main
from tests.e2e.tagged_models import CALLING, TAGGED, TAGGED_CONFIG, Asking, tag, write_tagged
from tests.e2e.test_several_ingresses import one_client_of_each
from tests.hostile.watch import grpc_address
from tests.repeating import asking
from tests.repositories import write_sequence_models, write_tagged_onnx
from tests.serving import CONTROLLER, EAGLERAY, Client, Process, Server, run, tensor, title_of, wait_until

FLAGS = ("--model-control-mode", "explicit", "--load-model", "*", "--ingresses-per-node", "2")
FLAGS += ("--num-cpus", "4", "--no-dashboard")
ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step { model_name: "tagged" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "TAG" value: "TAG" } }
}
"""
FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("this version is no good")
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traffic")
    for version in (1, 2, 3):
        write_tagged(root, "tagged", str(version), version, "version_policy { all {} }")
        write_tagged_onnx(root, "packed", version)
        write_tagged_onnx(
            root, "embedded", version, 'parameters { key: "eagleray.placement" value { string_value: "embedded" } }'
        )
    write_tagged_onnx(root, "set", 1)
    write_tagged_onnx(root, "set", 2, 'parameters { key: "eagleray.traffic" value { string_value: "1=3,2=1" } }')
    for version in (0, 1):
        write_tagged_onnx(root, "from_zero", version)
    (root / "canary").mkdir()
    for version, code in ((1, f"TAG = 1\n{TAGGED}"), (2, f"TAG = 2\n{TAGGED}"), (3, FAILING)):
        (root / "canary" / str(version)).mkdir()
        (root / "canary" / str(version) / "model.py").write_text(code)
    packed = 'version_policy { all {} } parameters { key: "eagleray.placement" value { string_value: "packed" } }'
    (root / "canary/config.pbtxt").write_text(TAGGED_CONFIG + packed)
    (root / "pipeline/1").mkdir(parents=True)
    (root / "pipeline/config.pbtxt").write_text(ENSEMBLE)
    (root / "calling/1").mkdir(parents=True)
    (root / "calling/1/model.py").write_text(CALLING)
    (root / "calling/config.pbtxt").write_text(TAGGED_CONFIG)
    write_sequence_models(root)
    (root / "sequence_sums/2").mkdir()
    for unused in ("row_sums", "remembering"):
        shutil.rmtree(root / unused)
    config = root / "sequence_sums/config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all {} }")
    shutil.copytree(config.parent, root / "late_weights")
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(repository, tmp_path_factory.mktemp("traffic-log") / "log", *FLAGS)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def change(server: Server, model: str, **given: Any) -> Any:
    answer = server.post(f"/v2/repository/models/{model}/traffic", given)
    assert answer.status == 200, answer.body
    return answer.json


def shown(server: Server, model: str) -> Any:
    return server.get(f"/v2/repository/models/{model}/traffic").json


def versions(client: Client, model: str, count: int, version: str = "") -> Counter[str]:
    """Return how many of so many requests each version has answered."""
    found: Counter[str] = Counter()
    for _ in range(count):
        answer = client.infer(model, tensor("X", "INT32", [1], [0]), version=version)
        found[answer.json["model_version"] if answer.status == 200 else str(answer.status)] += 1
    return found


def tags(client: Client, model: str, count: int) -> Counter[int]:
    answers = [client.infer(model, tensor("X", "INT32", [1], [0])).json for _ in range(count)]
    return Counter(answer["outputs"][0]["data"][0] for answer in answers)


def controller(server: Server) -> psutil.Process:
    (process,) = [each for each in server.descendants() if title_of(each).startswith(CONTROLLER)]
    return process


@pytest.mark.parametrize("model", ["tagged", "packed", "embedded"])
def test_weights_hold_on_all_ingresses_when_the_change_is_answered(server: Server, model: str) -> None:
    with one_client_of_each(server, server.address) as clients:
        for client in clients:
            assert versions(client, model, 10) == {"3": 10}
        assert change(server, model, weights={"1": 3, "2": 1})["shares"] == {"1": 0.75, "2": 0.25}
        for client in clients:
            assert versions(client, model, 40) == pytest.approx({"1": 30, "2": 10}, abs=3)
            assert versions(client, model, 5, version="3") == {"3": 5}, "who names a version gets it"
        change(server, model, weights={"2": 1})
        for client in clients:
            assert versions(client, model, 10) == {"2": 10}
        change(server, model, clear=True)
        for client in clients:
            assert versions(client, model, 10) == {"3": 10}


def test_version_0_shares_requests_as_any_other(server: Server) -> None:
    with server.client() as client:
        assert versions(client, "from_zero", 10) == {"1": 10}
        change(server, "from_zero", canary={"version": 1, "steps": [50], "interval_s": 600})
        assert versions(client, "from_zero", 20) == pytest.approx({"0": 10, "1": 10}, abs=2)
        change(server, "from_zero", weights={"0": 1})
        assert versions(client, "from_zero", 10) == {"0": 10}
        change(server, "from_zero", canary={"version": 0, "steps": [100]})
        change(server, "from_zero", clear=True)
        assert versions(client, "from_zero", 10) == {"1": 10}


def test_grpc_streams_and_generate_go_by_the_weights_too(server: Server) -> None:
    change(server, "tagged", weights={"1": 1, "2": 1})
    taken = grpc_client.InferInput("X", [1], "INT32")
    taken.set_data_from_numpy(np.zeros(1, np.int32))
    try:
        with grpc_client.InferenceServerClient(grpc_address(server.log())) as triton:
            answers = Counter(triton.infer("tagged", [taken]).get_response().model_version for _ in range(40))
            assert answers == pytest.approx({"1": 20, "2": 20}, abs=3)
            streamed: Counter[str] = Counter()
            done = threading.Semaphore(0)

            def take(result: Any, error: Any) -> None:
                streamed["failed" if error else result.get_response().model_version] += 1
                done.release()

            triton.start_stream(take)
            for _ in range(40):
                triton.async_stream_infer("tagged", [taken])
            for _ in range(40):
                assert done.acquire(timeout=60)
            triton.stop_stream()
            assert streamed == pytest.approx({"1": 20, "2": 20}, abs=3)
        with server.client() as client:
            generated = [client.request("POST", "/v2/models/tagged/generate", {"X": 0}).json for _ in range(40)]
        assert Counter(each["model_version"] for each in generated) == pytest.approx({"1": 20, "2": 20}, abs=3)
    finally:
        change(server, "tagged", clear=True)


@pytest.mark.parametrize("model", ["pipeline", "calling"])
def test_steps_and_calls_that_name_no_version_go_by_the_weights(server: Server, model: str) -> None:
    change(server, "tagged", weights={"1": 1, "3": 1})
    try:
        with server.client() as client:
            wait_until(lambda: tags(client, model, 10).keys() == {1, 3}, "those of before the weights")
            assert tags(client, model, 40) == pytest.approx({1: 20, 3: 20}, abs=3)
            change(server, "tagged", clear=True)
            change(server, "tagged", shadow={"3": 1})
            wait_until(lambda: tags(client, model, 10).keys() == {2}, "that 3 gets copies only")
    finally:
        change(server, "tagged", clear=True)


def test_weights_of_the_configuration_hold_until_a_command_and_after_it_is_cleared(server: Server) -> None:
    with server.client() as client:
        for _ in range(2):
            assert versions(client, "set", 40) == pytest.approx({"1": 30, "2": 10}, abs=3)
            change(server, "set", weights={"1": 1, "2": 0})
            assert versions(client, "set", 10) == {"1": 10}
            change(server, "set", clear=True)


def test_a_version_that_is_added_with_all_the_weight_has_it_once_it_is_loaded(server: Server, repository: Path) -> None:
    write_tagged(repository, "added", "1")
    assert server.post("/v2/repository/models/added/load").status == 200
    weights = 'version_policy { all {} } parameters { key: "eagleray.traffic" value { string_value: "2=1" } }'
    write_tagged(repository, "added", "2", 2, weights)
    with Asking(server, "added").running() as asked:
        assert server.post("/v2/repository/models/added/load").status == 200
    asked.assert_served()
    assert {tag(answer) for answer in asked.answers[:20]} == {1}
    assert tag(asked.answers[-1]) == 2


def test_a_sequence_stays_at_its_version_while_the_weights_change(server: Server) -> None:
    change(server, "sequence_sums", weights={"1": 1, "2": 1})

    def ask(client: Client, number: int, **flags: bool) -> str:
        parameters = {"sequence_id": number, **flags}
        answer = client.infer("sequence_sums", tensor("INPUT", "INT32", [1, 1], [1]), parameters=parameters)
        assert answer.status == 200, answer.body
        return str(answer.json["model_version"])

    with server.client() as client:
        began = {number: ask(client, number, sequence_start=True) for number in range(1, 21)}
        assert set(began.values()) == {"1", "2"}
        change(server, "sequence_sums", weights={"2": 1})
        assert {number: ask(client, number) for number in began} == began
        assert {number: ask(client, number, sequence_end=True) for number in began} == began
        assert {ask(client, number, sequence_start=True, sequence_end=True) for number in began} == {"2"}


def test_a_sequence_stays_at_its_version_when_weights_come_and_go(server: Server) -> None:
    def ask(client: Client, numbers: range, **flags: bool) -> set[str]:
        """Return the versions that answer a request in each sequence."""
        found = set()
        for number in numbers:
            body = tensor("INPUT", "INT32", [1, 1], [1])
            answer = client.infer("late_weights", body, parameters={"sequence_id": number, **flags})
            assert answer.status == 200, answer.body
            found.add(str(answer.json["model_version"]))
        return found

    earlier, later = range(1, 21), range(21, 41)
    with server.client() as client:
        assert ask(client, earlier, sequence_start=True) == {"2"}, "without weights the highest version"
        change(server, "late_weights", weights={"1": 1})
        assert ask(client, earlier) == {"2"}
        assert ask(client, later, sequence_start=True) == {"1"}
        change(server, "late_weights", clear=True)
        assert ask(client, later, sequence_end=True) == {"1"}
        assert ask(client, earlier, sequence_end=True) == {"2"}
        assert ask(client, later, sequence_start=True, sequence_end=True) == {"2"}


REFUSALS = {
    "unknown version": ("tagged", {"weights": {"1": 1, "7": 1}}, 400, "there is no version 7, but 1, 2, 3"),
    "negative": ("tagged", {"weights": {"1": -1}}, 400, "the weight of version 1 must be a number from 0 to 1e9"),
    "nothing": ("tagged", {"weights": {"1": 0}}, 400, "one version must have a weight above 0"),
    "shadow": ("tagged", {"shadow": {"3": 0}}, 400, "must be above 0 and at most 100"),
    "nobody answers": ("pipeline", {"shadow": {"1": 10}}, 400, "all versions would get copies only"),
    "empty": ("tagged", {}, 400, "there is none of weights, shadow, canary, clear"),
    "unknown member": ("tagged", {"weight": {}}, 400, "'weight' is none of weights"),
    "canary beside weights": ("tagged", {"canary": {"version": 2}, "weights": {}}, 400, "stand alone"),
    "canary of nothing": ("tagged", {"canary": {"version": 9}}, 400, "there is no version 9"),
    "only version": ("pipeline", {"canary": {"version": 1}}, 400, "no version beside 1"),
    "unknown model": ("nobody", {"weights": {"1": 1}}, 404, "Request for unknown model: 'nobody' is not found"),
}


@pytest.mark.parametrize(("model", "given", "status", "error"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_makes_no_sense_is_refused(server: Server, model: str, given: Any, status: int, error: str) -> None:
    answer = server.post(f"/v2/repository/models/{model}/traffic", given)
    assert (answer.status, error in answer.error) == (status, True), answer.body


def shadow_counts(server: Server, model: str, version: int) -> dict[str, int]:
    mark = f'eagleray_shadow_requests_total{{model="{model}",version="{version}",outcome="'
    lines = [line for line in server.metrics_text().splitlines() if line.startswith(mark)]
    return {line[len(mark) :].split('"')[0]: int(float(line.split()[-1])) for line in lines}


@pytest.mark.parametrize("model", ["tagged", "embedded"])
def test_a_shadow_gets_copies_and_nobody_hears_of_its_answers(server: Server, model: str) -> None:
    try:
        change(server, model, weights={"1": 1}, shadow={"3": 50})
        before = server.statistics(model, 3)["inference_stats"]["success"]["count"]
        with server.client() as client:
            assert versions(client, model, 40) == {"1": 40}

        def answered() -> bool:
            counted = server.statistics(model, 3)["inference_stats"]["success"]["count"] - before
            return counted >= 18 and shadow_counts(server, model, 3).get("success") == counted

        wait_until(answered, "as many copies by the metrics as by the statistics")
        counts = shadow_counts(server, model, 3)
        assert counts == {"success": pytest.approx(20, abs=2), "failure": 0, "dropped": 0}
    finally:
        change(server, model, clear=True)


def test_a_shadow_that_fails_fails_no_client(server: Server) -> None:
    try:
        change(server, "canary", weights={"1": 1}, shadow={"3": 100})
        with server.client() as client:
            assert versions(client, "canary", 10) == {"1": 10}
        wait_until(lambda: shadow_counts(server, "canary", 3).get("failure") == 10, "failed copies")
    finally:
        change(server, "canary", clear=True)


@contextmanager
def statuses_of(server: Server, model: str) -> Iterator[Counter[int]]:
    """Have a client ask all the time; yields how many answers there were of each status."""
    statuses: Counter[int] = Counter()

    def ask(client: Client) -> None:
        statuses[client.infer(model, tensor("X", "INT32", [1], [0])).status] += 1

    with asking(server, ask):
        yield statuses


def ended(server: Server, model: str, state: str) -> Callable[[], Any]:
    def look() -> Any:
        canary = shown(server, model)["canary"]
        return canary if canary is not None and canary["state"] == state else None

    return look


RULES = {"steps": [10, 50, 100], "interval_s": 0.5, "min_requests": 10}


def test_a_good_canary_gets_everything_though_the_controller_dies_on_the_way(server: Server) -> None:
    change(server, "canary", weights={"1": 1})
    with statuses_of(server, "canary") as statuses:
        change(server, "canary", canary={"version": 2, **RULES})
        os.kill(controller(server).pid, signal.SIGKILL)
        canary = wait_until(ended(server, "canary", "succeeded"), "a canary that has succeeded", 60)
    assert set(statuses) == {200}
    assert [event["event"] for event in canary["history"]][-4:] == ["begun", "next step", "next step", "succeeded"]
    assert all(event["requests"] >= 10 and event["p99_ms"] > 0 for event in canary["history"][-3:])
    with server.client() as client:
        assert versions(client, "canary", 10) == {"2": 10}


def test_a_canary_that_fails_is_rolled_back_by_itself(server: Server) -> None:
    change(server, "canary", weights={"1": 1, "2": 1})
    with statuses_of(server, "canary") as statuses:
        change(server, "canary", canary={"version": 3, "max_error_rate": 0.1, **RULES})
        canary = wait_until(ended(server, "canary", "rolled back"), "a canary that is rolled back", 15)
    assert statuses[500] <= statuses[200] / 2
    assert "of the requests failed, the limit is 10.00%" in canary["history"][-1]["event"]
    assert canary["percent"] == 0
    with server.client() as client:
        assert versions(client, "canary", 20) == pytest.approx({"1": 10, "2": 10}, abs=3)


def test_weights_outlive_the_controller(server: Server) -> None:
    change(server, "packed", weights={"1": 1, "2": 1})
    controller(server).kill()
    try:
        change(server, "set", clear=True)  # answered by another controller, which all ingresses follow by then
        assert shown(server, "packed")["weights"] == {"1": 1.0, "2": 1.0}
        with server.client() as client:
            assert versions(client, "packed", 20) == pytest.approx({"1": 10, "2": 10}, abs=3)
    finally:
        change(server, "packed", clear=True)


def command(server: Server, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", server.address])


def test_the_command_shows_and_changes_traffic(server: Server) -> None:
    done = run(EAGLERAY, "traffic", "packed", "1=95", "2=5", "--shadow", "3=10", "--url", server.address)
    assert done.stdout.splitlines() == [
        "version 1: 95 % of the requests",
        "version 2: 5 % of the requests",
        "version 3: copies of 10 %",
    ], done.stderr
    document = json.loads(command(server, "traffic", "packed", "--json").output)
    assert document["weights"] == {"1": 95.0, "2": 5.0}
    assert document["shadow"] == {"3": 10.0}
    canary = command(server, "traffic", "packed", "--canary", "2", "--steps", "1,100", "--interval", "3600")
    assert "canary 2: running, 1 %" in canary.output
    assert "begun" in command(server, "traffic", "packed").output
    cleared = command(server, "traffic", "packed", "--clear")
    assert cleared.output.splitlines()[:2] == ["version 3: 100 % of the requests", "canary 2: stopped, 1 %"]
    wrong = command(server, "traffic", "packed", "1=95", "9=5")
    assert (wrong.exit_code, "there is no version 9, but 1, 2, 3" in wrong.output) == (1, True)
    for arguments, text in (
        (("1:95",), "'1:95' is not <version>=<number>"),
        (("1=much",), "'much' is not a number"),
        (("--canary", "2", "--steps", "1,all"), "'all' is not a number"),
        (("--steps", "1,2"), "--steps needs --canary"),
    ):
        wrong = command(server, "traffic", "packed", *arguments)
        assert (wrong.exit_code, wrong.output.splitlines()[-1]) == (2, f"Error: {text}")


def test_models_come_and_go_by_command(server: Server) -> None:
    done = command(server, "unload", "packed")
    assert (done.exit_code, " READY" in done.output) == (0, False), done.output
    refused = command(server, "reload", "packed")
    assert (refused.exit_code, refused.output) == (1, "Error: model 'packed' is not loaded\n")
    rows = json.loads(command(server, "load", "packed", "--json").output)
    assert {row["version"]: row["state"] for row in rows} == {"1": "READY", "2": "READY", "3": "READY"}
    write_tagged(server.repository, "tagged", "30", 3, "version_policy { all {} }")
    assert command(server, "reload", "tagged").exit_code == 0
    with server.client() as client:
        assert tags(client, "tagged", 1) == {30: 1}
    missing = command(server, "load", "nobody")
    assert missing.exit_code == 1
    assert "failed to load 'nobody', failed to poll from model repository" in missing.output


def test_logs_are_printed_by_the_server_that_is_asked(server: Server) -> None:
    lines = command(server, "logs", "tagged", "--lines", "50").output.splitlines()
    assert any(line.startswith("[") and "successfully loaded 'tagged' version 1" in line for line in lines), lines
    objects = [json.loads(line) for line in command(server, "logs", "tagged", "--json").output.splitlines()]
    assert {each["line"] for each in objects} >= {line.partition("] ")[2] for line in lines[-1:]}
    nobody = command(server, "logs", "nobody")
    assert (nobody.exit_code, nobody.output) == (1, "Error: Request for unknown model: 'nobody' is not found (404)\n")


def test_doctor_looks_on_the_nodes_of_the_server_that_is_asked(server: Server) -> None:
    done = command(server, "doctor", "--json")
    findings = json.loads(done.output)
    assert done.exit_code == any(each["level"] == "error" for each in findings)
    (node,) = {each["node"] for each in findings if each["node"]}
    of_node = [(each["check"], each["text"]) for each in findings if each["node"]]
    assert ("ray token", "this server's Ray is closed by a token") in of_node
    here = json.loads(run(EAGLERAY, "doctor", "--json").stdout)
    alike = ("onnxruntime", "gpu")
    assert [each for each in of_node if each[0] in alike] == [
        (each["check"], each["text"]) for each in here if each["check"] in alike
    ]
    assert [each["text"] for each in findings if not each["node"]] == ["1 node with the same versions"]
    text = command(server, "doctor")
    assert f"[{node[:8]}] ok  ray token: this server's Ray is closed by a token\n" in text.output
    assert (text.exit_code, text.output.splitlines()[-1]) == (
        done.exit_code,
        "ok  nodes: 1 node with the same versions",
    )
    assert command(server, "doctor", "--ray-address", "auto").exit_code == 2


def test_status_is_printed_once_or_again_and_again(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        assert versions(client, "tagged", 1, version="1") == {"1": 1}
    document = json.loads(command(server, "status", "--json").output)
    rows = {(row["name"], row.get("version")): row for row in document["models"]}
    assert rows["tagged", "1"]["state"] == "READY"
    assert rows["tagged", "1"]["statistics"]["inference_stats"]["success"]["count"] > 0
    watching = Process((EAGLERAY, "status", "--watch", "--url", server.address), tmp_path / "log")
    try:
        # From the second time on there is what happened since the first.
        watching.wait_for(r"req/s\n(.*\n)*tagged +1 +READY")
    finally:
        watching.kill()
