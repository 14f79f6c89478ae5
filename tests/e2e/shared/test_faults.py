"""What is left when a process dies, a client goes away, a model raises or a port is taken."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.shared.conftest import isolated
from tests.repeating import asking
from tests.repositories import EXAMPLES
from tests.serving import CONTROLLER, EAGLERAY, Answer, Client, Server, infer_path, run, tensor, title_of, wait_until

BACK_TIMEOUT_S = 30.0
TAKEN_OVER_S = 10.0 if "FAULTS" in os.environ else 4.0
"""How long a new controller runs under traffic; lanes and reports last for 2 s."""


def seconds(value: float) -> dict[str, Any]:
    return tensor("SECONDS", "FP32", [1], [value])


def pid_of(answer: Answer) -> int:
    return int(answer.json["outputs"][0]["data"][0])


class Load:
    """Clients that ask one model again and again, each on a connection of its own, and keep every answer."""

    def __init__(self, server: Server, model: str, client_count: int, pause_s: float) -> None:
        self.answers: list[Answer] = []
        self._server = server
        self._model = model
        self._client_count = client_count
        self._pause_s = pause_s

    def _ask(self, client: Client) -> None:
        self.answers.append(client.infer(self._model, seconds(self._pause_s)))

    @contextmanager
    def running(self) -> Iterator["Load"]:
        with asking(self._server, self._ask, self._client_count):
            yield self

    def pids(self, since: int = 0) -> set[int]:
        return {pid_of(answer) for answer in self.answers[since:] if answer.status == 200}


@isolated
def test_death_of_one_of_two_replicas_loses_no_request(server: Server) -> None:
    with Load(server, "two_replicas", client_count=8, pause_s=0.02).running() as load:
        first, second = wait_until(lambda: len(pids := load.pids()) == 2 and pids, "answers of both replicas")
        os.kill(first, signal.SIGKILL)
        count = len(load.answers)
        wait_until(lambda: len(load.answers) > count + 50, "answers after the death")
        wait_until(lambda: load.pids() - {first, second}, "an answer of the new replica", BACK_TIMEOUT_S)
        wait_until(lambda: len(load.pids(since=len(load.answers) - 40)) == 2, "answers of both replicas again")
    assert {answer.status for answer in load.answers} == {200}
    assert first not in load.pids(since=len(load.answers) - 40)


@isolated
def test_request_that_is_alone_in_a_replica_that_is_killed_is_answered_by_the_other(server: Server) -> None:
    with Load(server, "two_replicas", client_count=4, pause_s=0.01).running() as load:
        first, second = wait_until(lambda: len(pids := load.pids()) == 2 and pids, "answers of both replicas")
    with server.client() as one, server.client() as other:
        for client in (one, other):
            client.send("POST", infer_path("two_replicas"), {"inputs": [seconds(2)]})
            server.statistics("two_replicas")  # comes after the request on every way that leads to the model
        os.kill(first, signal.SIGKILL)
        answers = [one.receive(), other.receive()]
    assert [(answer.status, pid_of(answer)) for answer in answers] == [(200, second)] * 2
    with Load(server, "two_replicas", client_count=4, pause_s=0.01).running() as load:
        wait_until(lambda: load.pids() - {second}, "an answer of the new replica", BACK_TIMEOUT_S)


@isolated
@pytest.mark.parametrize("way", [-1, -2], ids=["os._exit", "segmentation-fault"])
def test_request_that_kills_its_replica_is_answered_and_not_sent_to_the_next(server: Server, way: int) -> None:
    with Load(server, "two_replicas", client_count=4, pause_s=0.01).running() as load:
        before = wait_until(lambda: len(pids := load.pids()) == 2 and pids, "answers of both replicas")
    answer = server.infer("two_replicas", seconds(way))
    assert answer.status == 500
    assert "'two_replicas' died while the request was the only one under way in it" in answer.error
    assert pid_of(server.infer("two_replicas", seconds(0))) in before
    states: set[str] = set()
    with Load(server, "two_replicas", client_count=4, pause_s=0.01).running() as load:

        def is_back() -> bool:
            states.add(state(server, "two_replicas"))
            return len(load.pids() & before) == 1 < len(load.pids())

        wait_until(is_back, "a new replica", BACK_TIMEOUT_S)
    assert {answer.status for answer in load.answers} == {200}
    assert states == {"READY"}


def wait_ready_everywhere(server: Server, name: str) -> None:
    """Wait until each ingress says that a model is ready; every question goes to one by chance."""
    wait_until(lambda: all(state(server, name) == "READY" for _ in range(12)), "READY in the index")


@isolated
def test_death_of_a_lone_replica_fails_no_request(server: Server) -> None:
    """What was in it, in its queue, and what comes until Serve has replaced it is answered by the new one."""

    def ready() -> int:
        return server.get("/v2/models/lone/ready").status

    old = pid_of(server.infer("lone", seconds(0)))
    with server.client() as inside, server.client() as queued, server.client() as later, server.client() as named:
        inside.send("POST", infer_path("lone"), {"inputs": [seconds(1)]})
        queued.send("POST", infer_path("lone"), {"inputs": [seconds(1)]})
        wait_until(lambda: pending(server, "lone") == 1, "one request in the model and one in its queue")
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: ready() != 200, "not ready while there is no replica")
        later.send("POST", infer_path("lone"), {"inputs": [seconds(0)]})
        named.send("POST", "/v2/models/lone/versions/1/infer", {"inputs": [seconds(0)]})
        assert state(server, "lone") == "UNAVAILABLE"
        answers = [client.receive() for client in (inside, queued, later, named)]
    assert [answer.status for answer in answers] == [200] * 4
    (new,) = {pid_of(answer) for answer in answers}
    assert new != old
    wait_until(lambda: ready() == 200, "ready with the new replica")
    wait_ready_everywhere(server, "lone")


@isolated
def test_a_request_that_ends_the_only_replica_gets_500_and_no_other_fails(server: Server) -> None:
    server.infer("lone", seconds(0))
    with server.client() as killing, server.client() as queued:
        queued.send("POST", infer_path("lone"), {"inputs": [seconds(0.5)]})
        killing.send("POST", infer_path("lone"), {"inputs": [seconds(-1)]})
        answers = [killing.receive(), queued.receive()]
        later = server.infer("lone", seconds(0))
    assert [answer.status for answer in (*answers, later)] == [500, 200, 200]
    wait_ready_everywhere(server, "lone")


@pytest.mark.parametrize(
    ("server", "title"),
    [("auto", "ray::ServeReplica:lone"), ("packed", "ray::ServeReplica:eagleray-packed")],
    indirect=["server"],
    scope="package",  # or pytest runs it last, and starts both servers once more
)
def test_models_are_back_after_their_replicas_died_for_a_while(server: Server, title: str) -> None:
    """Long enough for Serve to call the deployment unhealthy, and for the controller to hear of it."""
    ready = ready_models(server)
    kill_for(server, title, 8.0)
    wait_until(lambda: ready_models(server) == ready, "READY in the index", 60.0)
    wait_until(lambda: server.get("/v2/models/digits_pipeline/ready").status == 200, "the ensemble")
    assert state(server, "broken_dependent") == "UNAVAILABLE"


@pytest.mark.parametrize("server", ["packed"], indirect=True, scope="package")
def test_models_are_back_though_the_controller_of_serve_died_with_their_replica(server: Server) -> None:
    """The next one knows of no replica that ran, and gives up as soon as one fails to start."""
    ready = ready_models(server)
    kill(server, "ray::ServeController")
    kill_for(server, "ray::ServeReplica:eagleray-packed", 4.0)
    wait_until(lambda: ready_models(server) == ready, "READY in the index", 60.0)


def ready_models(server: Server) -> set[str]:
    names = ("lone", "digits_preprocess", "digits_pipeline", "simple")
    return {name for name in names if state(server, name) == "READY"}


def kill(server: Server, title: str) -> None:
    for process in server.descendants():
        if title_of(process).startswith(title):
            process.kill()


def kill_for(server: Server, title: str, time_s: float) -> None:
    deadline = time.monotonic() + time_s

    def over() -> bool:
        kill(server, title)
        return time.monotonic() > deadline

    wait_until(over, "the end of the killing")


def controller_pid(server: Server) -> int:
    """Return the process of Eagleray's controller, 0 while there is none."""
    for process in server.descendants():
        if title_of(process).startswith(CONTROLLER):
            return process.pid
    return 0


def test_clients_do_not_notice_the_death_of_the_controller(server: Server) -> None:
    """Requests are answered and the index stays as it is, before, while and after a new controller takes over."""
    index = server.post("/v2/repository/index").json
    old = controller_pid(server)
    taken_over_s = 0.0

    def taken_over() -> bool:
        nonlocal taken_over_s
        assert server.post("/v2/repository/index").json == index
        assert server.get("/v2/models/slow/ready").status == 200
        if not taken_over_s and controller_pid(server) not in (0, old):
            taken_over_s = time.monotonic()
        return bool(taken_over_s) and time.monotonic() - taken_over_s > TAKEN_OVER_S

    with Load(server, "slow", client_count=4, pause_s=0.002).running() as load:
        os.kill(old, signal.SIGKILL)
        wait_until(taken_over, "a controller that has run for a while", 90.0)
    assert {answer.status for answer in load.answers} == {200}


@pytest.mark.parametrize("server", ["packed"], indirect=True, scope="package")
def test_a_controller_that_takes_over_while_models_are_placed_says_first_what_serves(server: Server) -> None:
    """The broken models of the repository are read again while a replica is slow to tell what it has loaded."""
    index = server.post("/v2/repository/index").json
    old = controller_pid(server)
    (slow,) = (
        each.pid for each in server.descendants() if title_of(each).startswith("ray::ServeReplica:eagleray-packed")
    )
    os.kill(slow, signal.SIGSTOP)
    try:
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: controller_pid(server) not in (0, old), "a new controller", 60.0)
        time.sleep(1.8)  # of the 2 s that it gives a replica to answer
    finally:
        os.kill(slow, signal.SIGCONT)
    told = []
    for _ in range(int(TAKEN_OVER_S / 0.1)):
        told.append(server.post("/v2/repository/index").json)
        time.sleep(0.1)
    assert [each for each in told if each != index] == []


def state(server: Server, model: str) -> str:
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == model]
    return str(row["state"])


def pending(server: Server, model: str) -> float:
    """Return how many requests wait for an instance."""
    return metric(server, f'nv_inference_pending_request_count{{model="{model}",version="1"}}')


def metric(server: Server, series: str) -> float:
    (line,) = [line for line in server.metrics_text().splitlines() if line.startswith(series)]
    return float(line.split()[-1])


def canceled(server: Server, model: str) -> float:
    return metric(server, f'nv_inference_request_failure{{model="{model}",reason="CANCELED",version="1"}}')


def test_client_that_goes_away_in_the_queue_costs_nothing(server: Server) -> None:
    before, canceled_before = server.statistics("slow"), canceled(server, "slow")
    with server.client() as first, server.client() as third:
        first.send("POST", infer_path("slow"), {"inputs": [seconds(3)]})
        server.statistics("slow")  # comes after the request on every way that leads to the model
        with server.client() as second:
            second.send("POST", infer_path("slow"), {"inputs": [seconds(60)]})
            wait_until(lambda: pending(server, "slow") == 1, "the second request in the queue")
        third.send("POST", infer_path("slow"), {"inputs": [seconds(0)]})
        assert first.receive().status == 200
        assert third.receive().status == 200
    after = server.statistics("slow")
    assert after["execution_count"] - before["execution_count"] == 2
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 2
    assert canceled(server, "slow") - canceled_before == 1


def mode(word: str) -> dict[str, Any]:
    return tensor("MODE", "BYTES", [1, 1], [word])


def ask_together(server: Server, words: list[str]) -> list[Answer]:
    """Send one request for each word, all within the delay of the model's batcher, so that they run as one batch."""
    clients = [server.client() for _ in words]
    for client in clients:
        assert client.get("/v2/health/live").status == 200
    for client, word in zip(clients, words, strict=True):
        client.send("POST", infer_path("failing"), {"inputs": [mode(word)]})
    return [client.receive() for client in clients]


def test_exception_of_a_model_fails_its_requests_with_its_message(server: Server) -> None:
    answer = server.infer("failing", mode("raise"))
    assert answer.status == 500
    assert "the model does not feel like it" in answer.error
    assert b"Traceback" not in answer.body and b".py" not in answer.body
    assert server.infer("failing", mode("fine")).status == 200


def test_interrupt_raised_by_a_model_fails_its_requests_and_the_model_goes_on(server: Server) -> None:
    for _ in range(3):
        answer = server.infer("failing", mode("interrupt"))
        assert answer.status == 500
        assert "KeyboardInterrupt: the model was told to stop" in answer.error
        assert server.infer("failing", mode("fine")).status == 200


@isolated
def test_replica_whose_model_is_stuck_is_replaced(server: Server) -> None:
    old = pid_of(server.infer("lone", seconds(0)))
    with server.client() as stuck:
        stuck.send("POST", infer_path("lone"), {"inputs": [seconds(1000)]})
        wait_until(lambda: state(server, "lone") == "UNAVAILABLE", "UNAVAILABLE in the index", BACK_TIMEOUT_S)
        answer = stuck.receive()
    assert answer.status == 500
    assert answer.error == "model instance 'lone_0' has run one batch for more than 12 s"
    wait_until(lambda: state(server, "lone") == "READY", "READY in the index", BACK_TIMEOUT_S)
    assert pid_of(server.infer("lone", seconds(0))) != old


@isolated
def test_replica_whose_model_has_lost_its_gpu_is_replaced(server: Server) -> None:
    old = pid_of(server.infer("lone", seconds(0)))
    answer = server.infer("lone", seconds(-3))
    assert answer.status == 500
    assert answer.error.endswith("RuntimeError: CUDA error: an illegal memory access was encountered")

    def replaced() -> bool:
        answer = server.infer("lone", seconds(0))
        return answer.status == 200 and pid_of(answer) != old

    wait_until(replaced, "an answer of a new process", BACK_TIMEOUT_S)
    wait_until(lambda: state(server, "lone") == "READY", "READY in the index", BACK_TIMEOUT_S)


def test_error_response_fails_one_request_of_a_batch(server: Server) -> None:
    before = server.statistics("failing")
    answers = ask_together(server, ["fine", "error", "fine", "fine"])
    assert [answer.status for answer in answers] == [200, 500, 200, 200]
    assert answers[1].error == "this request, and no other, is refused"
    assert server.statistics("failing")["execution_count"] - before["execution_count"] < 4


def test_exception_in_one_model_fails_nothing_else(server: Server) -> None:
    good = [tensor(name, "INT32", [1, 16], [1] * 16) for name in ("INPUT0", "INPUT1")]
    statuses: list[int] = []
    with Load(server, "slow", client_count=2, pause_s=0.001).running() as load, server.client() as client:
        for _ in range(20):
            assert client.infer("failing", mode("raise")).status == 500
            statuses.append(client.infer("simple", *good).status)
    assert {answer.status for answer in load.answers} == {200}
    assert set(statuses) == {200}


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHos",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ],
    ids=["in-body", "in-head", "tls", "silent"],
)
def test_client_that_goes_away_in_a_request_harms_nobody(server: Server, sent: bytes) -> None:
    host, _, port = server.address.rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    assert server.infer("slow", seconds(0)).status == 200


def test_clients_of_a_ready_model_do_not_notice_the_broken_ones(server: Server) -> None:
    with Client(server.address) as client:
        for _ in range(20):
            assert client.infer("broken_initialize", seconds(0)).status == 404
            assert client.infer("slow", seconds(0)).status == 200


def test_python_model_that_was_quick_and_becomes_slow_holds_up_no_other(server: Server) -> None:
    with server.client() as client:
        for _ in range(20):
            assert client.infer("moody", seconds(0)).status == 200
        # A replica of its own may run it on its loop and then answers nothing else; what it said last stands.
        assert client.get("/v2/models/moody/stats").json["model_stats"]
    with server.client() as held:
        held.send("POST", infer_path("moody"), {"inputs": [seconds(3)]})
        with Client(server.address, timeout_s=1.5) as client:
            assert client.infer("slow", seconds(0)).status == 200
            assert client.get("/v2/models/moody/stats").json["model_stats"]
        assert held.receive().status == 200


@isolated
def test_second_start_names_the_port_and_the_server_that_holds_it(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    others = ("--grpc-port", "0", "--metrics-port", "0")
    done = run(EAGLERAY, "serve", "--model-repository", str(EXAMPLES), "--http-port", port, *others)
    assert done.returncode == 1
    holder = re.search(
        rf"port {port} \(HTTP\) is taken by process (\d+), ray::ServeReplica:eagleray:Ingress", done.stderr
    )
    assert holder, done.stderr
    assert int(holder[1]) in server.replica_pids()
