"""Two ingresses on one node, with the models in themselves or in a process that they share: clients see one server."""

import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.repositories import write_sequence_models, write_small_models
from tests.serving import CONTROLLER, Answer, Client, Server, tensor, title_of, wait_until

FLAGS = ("--ingresses-per-node", "2", "--allow-client-shm=true", "--num-cpus", "4", "--no-dashboard")
CACHE = ("--cache-config", "local,size=1048576")
INGRESS = "ray::ServeReplica:eagleray:Ingress"
CONNECTIONS = 100
STAMPS = {
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
    "INFER_RESPONSE_COMPLETE",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
}
ROW = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]


@pytest.fixture(scope="module", params=["packed", "embedded"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = write_small_models(tmp_path_factory.mktemp("several"))
    write_sequence_models(repository, shared=True)
    log = tmp_path_factory.mktemp("several-log") / "log"
    traces = ("--trace-config", f"triton,file={log.parent}/traces.json")
    started = Server(repository, log, "--placement", request.param, *FLAGS, *CACHE, *traces)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def ingresses(server: Server) -> list[psutil.Process]:
    return [each for each in server.descendants() if title_of(each).startswith(INGRESS)]


def holder(server: Server, client: Client) -> int:
    """Return the process that the client's connection is with, which has answered it: else it may not have taken it yet."""
    port = client.local_port
    for process in ingresses(server):
        if any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp")):
            return process.pid
    raise AssertionError("no ingress has the connection")


@contextmanager
def one_client_of_each(server: Server, address: str) -> Iterator[list[Client]]:
    """Open connections until there is one to each of both ingresses."""
    with ExitStack() as stack:
        found: dict[int, Client] = {}
        for _ in range(CONNECTIONS):
            client = stack.enter_context(Client(address))
            client.get("/")
            found.setdefault(holder(server, client), client)
            if len(found) == 2:
                break
        assert len(found) == 2, f"{CONNECTIONS} connections are all with {set(found)}"
        yield list(found.values())


def success_count(client: Client) -> float:
    lines = client.get("/metrics").body.decode().splitlines()
    (line,) = [each for each in lines if each.startswith('nv_inference_request_success{model="simple"')]
    return float(line.split()[-1])


def test_both_are_ready_when_the_server_says_so(server: Server) -> None:
    with one_client_of_each(server, server.address) as clients:
        for client in clients:
            assert client.get("/v2/health/ready").status == 200
            assert client.infer("simple", *ROW).status == 200


def test_shared_memory_registered_at_one_is_known_to_both(server: Server) -> None:
    memory = SharedMemory(f"eagleray_test_{secrets.token_hex(4)}", create=True, size=64)
    region = {"key": f"/{memory.name}", "offset": 0, "byte_size": 64}
    values = np.arange(16, dtype=np.int32)
    memory.buf[:64] = values.tobytes()
    place = {"shared_memory_region": "here", "shared_memory_byte_size": 64}
    first = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "parameters": place}
    try:
        with one_client_of_each(server, server.address) as (one, other):
            for _ in range(5):
                assert one.request("POST", "/v2/systemsharedmemory/region/here/register", region).status == 200
                assert other.get("/v2/systemsharedmemory/status").json == [{"name": "here", **region}]
                for client in (other, one):
                    answer = client.infer("simple", first, ROW[1])
                    assert answer.json["outputs"][0]["data"] == (values + 1).tolist()
                assert other.request("POST", "/v2/systemsharedmemory/region/here/unregister").status == 200
                refused = one.infer("simple", first, ROW[1])
                assert refused.error == "Unable to find shared memory region: 'here'"
    finally:
        memory.close()
        memory.unlink()


def test_what_one_has_answered_the_other_answers_from_the_cache(server: Server) -> None:
    def counts() -> tuple[int, int]:
        stats = server.statistics("cached", 1)["inference_stats"]
        return stats["cache_hit"]["count"], stats["cache_miss"]["count"]

    hits, misses = counts()
    with one_client_of_each(server, server.address) as (one, other):
        answers = [client.infer("cached", tensor("X", "INT32", [1], [7])) for client in (one, other, one, other)]
    assert len({answer.body for answer in answers}) == 1 and answers[0].status == 200
    assert counts() == (hits + 3, misses + 1)


def replicas(server: Server) -> list[psutil.Process]:
    """Return the processes of the model that has two."""
    return [process for process in server.descendants() if "shared_sums" in title_of(process)]


def add(client: Client, sequence_id: int, value: int, *, start: bool = False, end: bool = False) -> Answer:
    """Send a request of a sequence to a model of two replicas."""
    parameters = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    return client.infer("shared_sums", tensor("INPUT", "INT32", [1, 1], [value]), parameters=parameters)


def total(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.json["outputs"][0]["data"][0])


def test_sequences_stay_with_their_replica_whichever_ingress_they_come_through(server: Server) -> None:
    ids = range(1, 301)
    with one_client_of_each(server, server.address) as clients:
        for step in range(4):
            answers = {
                number: add(clients[(number + step) % 2], number, number * step, start=step == 0, end=step == 3)
                for number in ids
            }
        assert {number: total(answer) for number, answer in answers.items()} == {number: 7 * number for number in ids}
        assert len(replicas(server)) == 2


def test_sequences_of_a_replica_that_dies_fail_once_and_start_anew(server: Server) -> None:
    ids = range(1001, 1041)
    with one_client_of_each(server, server.address) as clients:
        for number in ids:
            add(clients[number % 2], number, 1, start=True)
        dead = replicas(server)[0]
        dead.kill()
        wait_until(lambda: dead not in replicas(server), "the death of the replica")
        going_on = {number: add(clients[number % 2], number, 1) for number in ids}
        lost = [number for number, answer in going_on.items() if answer.status != 200]
        assert 0 < len(lost) < len(ids)
        for number in lost:
            assert "start" in going_on[number].error.lower()
            assert total(add(clients[number % 2], number, 5, start=True)) == 5
        for number in set(ids) - set(lost):
            assert total(going_on[number]) == 2
        wait_until(lambda: len(replicas(server)) == 2, "the new replica", 60)
        for client in clients:
            wait_until(lambda client=client: client.get("/v2/health/ready").status == 200, "both ready again", 60)
        for number in ids:
            end = total(add(clients[number % 2], number, 1, end=True))
            assert end == number + (6 if number in lost else 3)


def test_both_tell_the_same_metrics_and_statistics(server: Server) -> None:
    with (
        one_client_of_each(server, server.address) as clients,
        one_client_of_each(server, server.metrics_address) as metrics,
    ):
        before = success_count(metrics[0])
        for client in clients:
            for _ in range(10):
                assert client.infer("simple", *ROW).status == 200
        assert [success_count(each) for each in metrics] == [before + 20] * 2
        for client in clients:
            (row,) = client.get("/v2/models/simple/stats").json["model_stats"]
            assert row["inference_stats"]["success"]["count"] == before + 20


def test_settings_changed_at_one_hold_at_both(server: Server) -> None:
    with one_client_of_each(server, server.address) as (one, other):
        for level in (1, 2, 0):
            assert one.request("POST", "/v2/logging", {"log_verbose_level": level}).json["log_verbose_level"] == level
            assert other.get("/v2/logging").json["log_verbose_level"] == level
        for rate in ("5", "7"):
            settings = {"trace_rate": rate, "trace_level": ["TIMESTAMPS"]}
            assert other.request("POST", "/v2/models/simple/trace/setting", settings).json["trace_rate"] == rate
            assert one.get("/v2/models/simple/trace/setting").json["trace_rate"] == rate
            assert one.get("/v2/trace/setting").json["trace_rate"] == "1000"
        cleared = {"trace_rate": None, "trace_level": None}
        assert one.request("POST", "/v2/models/simple/trace/setting", cleared).json["trace_rate"] == "1000"
        assert other.get("/v2/models/simple/trace/setting").json["trace_level"] == ["OFF"]


def test_traces_of_both_are_in_one_file(server: Server) -> None:
    path = server.log_path.parent / "traces.json"
    with one_client_of_each(server, server.address) as (one, other):
        settings = {"trace_rate": "1", "trace_level": ["TIMESTAMPS", "TENSORS"]}
        one.request("POST", "/v2/models/simple/trace/setting", settings)
        for client, id in ((one, "of one"), (other, "of the other")):
            for _ in range(2):
                assert client.infer("simple", *ROW, id=id).status == 200
        heads = wait_until(lambda: traced(path, "simple", 4), "four traces")
        assert sorted(each["request_id"] for each in heads) == ["of one"] * 2 + ["of the other"] * 2
        one.request("POST", "/v2/models/simple/trace/setting", dict.fromkeys(settings))
    for head in heads:
        stamps, tensors = parts(path, head["id"])
        assert list(stamps.values()) == sorted(stamps.values())
        assert set(stamps) - {"LANE_SEND", "LANE_RECEIVE"} == STAMPS
        assert {name for activity, name in tensors if activity == "TENSOR_QUEUE_INPUT"} == {"INPUT0", "INPUT1"}
        assert tensors["TENSOR_BACKEND_OUTPUT", "OUTPUT0"] == {
            "name": "OUTPUT0",
            "data": ",".join(["2"] * 16),
            "shape": "1,16",
            "dtype": "INT32",
        }


def test_traces_up_to_a_count_are_in_a_file_of_each(server: Server) -> None:
    folder = server.log_path.parent
    with one_client_of_each(server, server.address) as (one, other):
        settings = {"trace_rate": "1", "trace_count": "3", "trace_level": ["TIMESTAMPS"]}
        one.request("POST", "/v2/models/simple/trace/setting", settings)
        for _ in range(4):
            for client, id in ((one, "of one"), (other, "of the other")):
                assert client.infer("simple", *ROW, id=id).status == 200
        files = [folder / f"traces.json.{number}" for number in (0, 1)]
        found = [wait_until(partial(traced, path, "simple", 3), f"three traces in {path}") for path in files]
        one.request("POST", "/v2/models/simple/trace/setting", dict.fromkeys(settings))
    assert sorted([each["request_id"] for each in heads] for heads in found) == [["of one"] * 3, ["of the other"] * 3]


def traced(path: Path, model: str, count: int) -> list[dict[str, Any]]:
    """Return the heads of a model's traces in a file, once it has so many of them."""
    objects = json.loads(path.read_text()) if path.exists() else []
    found = [each for each in objects if each.get("model_name") == model]
    return found if len(found) >= count else []


def parts(path: Path, id: int) -> tuple[dict[str, int], dict[tuple[str, str], Any]]:
    """Return the timestamps of a trace in a file, and its tensors."""
    stamps, tensors = {}, {}
    for each in json.loads(path.read_text()):
        if each["id"] != id:
            continue
        for stamp in each.get("timestamps", ()):
            stamps[stamp["name"]] = stamp["ns"]
        if "activity" in each:
            tensors[each["activity"], each["tensor"]["name"]] = each["tensor"]
    return stamps, tensors


def test_settings_outlive_the_controller(server: Server) -> None:
    with one_client_of_each(server, server.address) as (one, other):
        one.request("POST", "/v2/logging", {"log_format": "ISO8601"})
        (controller,) = [each for each in server.descendants() if CONTROLLER in title_of(each)]
        controller.kill()
        wait_until(
            lambda: one.request("POST", "/v2/logging", {"log_warning": False}).status == 200,
            "a controller",
            timeout_s=60,
        )
        for client in (one, other):

            def both_hold(client: Client = client) -> bool:
                settings = client.get("/v2/logging").json
                return (settings["log_format"], settings["log_warning"]) == ("ISO8601", False)

            wait_until(both_hold, "what was set before and after the controller died")
        assert one.request("POST", "/v2/logging", {"log_format": "default", "log_warning": True}).status == 200


def test_while_one_stands_still_what_the_other_is_told_is_done(server: Server) -> None:
    """The controller answers the one that stands still within the 5 s after which it tells that there is no news."""
    with one_client_of_each(server, server.address) as (one, other):
        stopped = psutil.Process(holder(server, one))
        stopped.suspend()
        try:
            over_s = time.monotonic() + 8.0
            while time.monotonic() < over_s:
                assert other.request("POST", "/v2/logging", {"log_warning": False}).status == 200
        finally:
            stopped.resume()
        for client in (one, other):
            assert client.request("POST", "/v2/logging", {"log_warning": True}).status == 200


def test_when_one_is_killed_the_other_serves_on_and_a_new_one_joins(server: Server) -> None:
    """Runs last: it leaves another pair of ingresses."""
    with one_client_of_each(server, server.address) as (one, other), Client(server.metrics_address) as metrics:
        killed, stays = holder(server, one), holder(server, other)
        while metrics.get("/metrics").status == 200 and holder(server, metrics) != stays:
            metrics.__exit__()
            metrics.__init__(server.metrics_address)
        for client in (one, other):
            assert client.infer("simple", *ROW).status == 200
        before = success_count(metrics)
        (controller,) = [each for each in server.descendants() if CONTROLLER in title_of(each)]
        controller.kill()
        os.kill(killed, signal.SIGKILL)
        for _ in range(50):
            assert other.infer("simple", *ROW).status == 200
        # It listens until the last of its threads has ended; a zombie may have some left.
        wait_until(lambda: not psutil.pid_exists(killed), "the end of the killed process")
        with server.client() as fresh:
            assert fresh.infer("simple", *ROW).status == 200
        assert success_count(metrics) == before + 51
    answered = 51

    def new_one_answers() -> bool:
        """Ask on a connection of its own: nobody is with an ingress that cannot answer yet."""
        nonlocal answered
        with server.client() as fresh:
            assert fresh.infer("simple", *ROW).status == 200
            answered += 1
            return holder(server, fresh) not in (killed, stays)

    wait_until(new_one_answers, "an answer of another ingress", timeout_s=60, poll_s=0.01)
    with one_client_of_each(server, server.address) as clients:
        # A new ingress listens after 10 s at the latest, with whatever it has loaded by then.
        wait_until(lambda: all([client.get("/v2/health/ready").status == 200 for client in clients]), "both are ready")
    with one_client_of_each(server, server.metrics_address) as clients:
        assert [success_count(client) for client in clients] == [before + answered] * 2
