"""Models that answer a request with any number of responses, over both protocols."""

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.serving import Server, tensor, wait_until

MODELS = ("countdown", "countdown_in_thread")
TIMEOUT_S = 30.0


class Stream:
    """A ModelStreamInfer of tritonclient, and what came back on it."""

    def __init__(self, server: Server) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(server.wait_for(r"gRPC\s+(\S+)")[1])
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self._answers.put((result, error)))

    def count_down(self, model: str, count: int, request_id: str = "", *, empty_end: bool = False) -> None:
        wanted = tritonclient.grpc.InferInput("COUNT", [1], "INT32")
        wanted.set_data_from_numpy(np.array([count], np.int32))
        self.client.async_stream_infer(model, [wanted], request_id=request_id, enable_empty_final_response=empty_end)

    def next(self) -> tuple[Any, Any]:
        return self._answers.get(timeout=TIMEOUT_S)

    def response(self) -> Any:
        result, error = self.next()
        assert error is None
        return result.get_response()

    def nothing_more(self) -> None:
        self.client.stop_stream()
        assert self._answers.empty()


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    opened = Stream(server)
    try:
        yield opened
    finally:
        opened.client.close()


def number(response: Any) -> int:
    return int(np.frombuffer(response.raw_output_contents[0], np.int32)[0])


def final(response: Any) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)


@pytest.mark.parametrize("model", MODELS)
def test_streams_every_response_and_no_more(stream: Stream, model: str) -> None:
    stream.count_down(model, 5, "five")
    got = [stream.response() for _ in range(5)]
    assert [number(response) for response in got] == [5, 4, 3, 2, 1]
    assert {(response.id, response.model_name, response.model_version) for response in got} == {("five", model, "1")}
    # What ends `countdown` is a flag of its own, which a client does not see unless it asks.
    assert [final(response) for response in got] == [False] * 4 + [model == "countdown_in_thread"]
    stream.nothing_more()


@pytest.mark.parametrize("count", [0, 3])
def test_tells_of_an_empty_end_if_asked(stream: Stream, count: int) -> None:
    stream.count_down("countdown", count, "empty", empty_end=True)
    got = [stream.response() for _ in range(count + 1)]
    assert [final(response) for response in got] == [False] * count + [True]
    last = got[-1]
    assert (last.id, last.model_name, len(last.outputs), len(last.raw_output_contents)) == ("empty", "countdown", 0, 0)
    stream.nothing_more()


def test_no_response_at_all_is_an_answer_too(stream: Stream) -> None:
    stream.count_down("countdown", 0)
    stream.count_down("countdown", 1)
    assert number(stream.response()) == 1
    stream.nothing_more()


def test_requests_of_one_stream_are_told_apart(stream: Stream) -> None:
    for index in range(8):
        stream.count_down("countdown_in_thread", 4, f"request {index}")
    got: dict[str, list[int]] = {}
    for _ in range(8 * 4):
        response = stream.response()
        got.setdefault(response.id, []).append(number(response))
    assert got == {f"request {index}": [4, 3, 2, 1] for index in range(8)}


def test_an_error_ends_one_request_and_not_the_stream(stream: Stream) -> None:
    stream.count_down("countdown", -1, "bad")
    result, error = stream.next()
    assert result is None and "cannot count down from a negative number" in str(error)
    stream.count_down("countdown", 1, "good")
    assert number(stream.response()) == 1


def test_unary_inference_is_refused(server: Server, stream: Stream) -> None:
    wanted = tritonclient.grpc.InferInput("COUNT", [1], "INT32")
    wanted.set_data_from_numpy(np.array([1], np.int32))
    with pytest.raises(InferenceServerException) as refused:
        stream.client.infer("countdown", [wanted])
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    assert refused.value.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"
    answer = server.infer("countdown", tensor("COUNT", "INT32", [1], [1]))
    assert answer.status == 501
    assert answer.error == "HTTP end point doesn't support models with decoupled transaction policy"


def test_generate_takes_exactly_one_response(server: Server) -> None:
    one = server.post("/v2/models/countdown/generate", {"COUNT": 1})
    assert (one.status, one.json["NUMBER"], one.json["model_name"]) == (200, 1, "countdown")
    for count in (0, 2):
        other = server.post("/v2/models/countdown/generate", {"COUNT": count})
        assert other.status == 400
        assert other.error.startswith("generate expects model to produce exactly 1 response")
    failed = server.post("/v2/models/countdown/generate", {"COUNT": -1})
    assert "negative" in failed.error


@pytest.mark.parametrize("model", MODELS)
def test_generate_stream_sends_an_event_for_each_response(server: Server, model: str) -> None:
    answer = server.post(f"/v2/models/{model}/generate_stream", {"COUNT": 4})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line]
    assert [event["NUMBER"] for event in events] == [4, 3, 2, 1]


def ended_count(server: Server, model: str) -> int:
    return _ended_count(server.statistics(model))


def _ended_count(statistics: dict[str, Any]) -> int:
    stats = statistics["inference_stats"]
    return int(stats["success"]["count"] + stats["fail"]["count"])


def test_a_client_that_leaves_its_stream_stops_the_model(server: Server, stream: Stream) -> None:
    before = ended_count(server, "countdown_in_thread")
    stream.count_down("countdown_in_thread", 100_000)  # a quarter of an hour
    stream.response()
    stream.client.stop_stream(cancel_requests=True)
    wait_until(lambda: ended_count(server, "countdown_in_thread") == before + 1, "the end of the request")


def test_a_client_that_leaves_an_event_stream_stops_the_model(server: Server) -> None:
    before = ended_count(server, "countdown_in_thread")
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=TIMEOUT_S) as client:
        body = b'{"COUNT": 100000}'
        head = b"POST /v2/models/countdown_in_thread/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: ended_count(server, "countdown_in_thread") == before + 1, "the end of the request")


def test_statistics_count_a_request_once_and_its_responses_one_by_one(server: Server, stream: Stream) -> None:
    before = server.statistics("countdown")
    stream.count_down("countdown", 7, empty_end=True)
    for _ in range(8):
        stream.response()
    wait_until(lambda: ended_count(server, "countdown") == _ended_count(before) + 1, "the statistics")
    after = server.statistics("countdown")
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1

    def counted(index: int) -> dict[str, int]:
        old = before["response_stats"].get(str(index), {})
        return {
            phase: duration["count"] - old.get(phase, {"count": 0})["count"]
            for phase, duration in after["response_stats"][str(index)].items()
        }

    said = {"compute_infer": 1, "compute_output": 1, "success": 1, "fail": 0, "empty_response": 0, "cancel": 0}
    assert [counted(index) for index in range(7)] == [said] * 7
    assert counted(7) == {**dict.fromkeys(said, 0), "empty_response": 1}
    assert after["response_stats"]["0"]["success"]["ns"] > 0


def test_many_streams_at_once(server: Server) -> None:
    results: list[list[int]] = []

    def drive() -> None:
        one = Stream(server)
        one.count_down("countdown_in_thread", 20)
        results.append([number(one.response()) for _ in range(20)])
        one.client.close()

    threads = [threading.Thread(target=drive) for _ in range(6)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert results == [list(range(20, 0, -1))] * 6
