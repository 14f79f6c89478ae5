"""Sequences over HTTP, gRPC and gRPC streams, as Triton's clients send them."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.serving import Client, Server, tensor

Send = Callable[..., int]


def _inputs(module: Any, value: int) -> list[Any]:
    made = module.InferInput("INPUT", [1, 1], "INT32")
    made.set_data_from_numpy(np.array([[value]], np.int32))
    return [made]


@contextmanager
def http(server: Server) -> Iterator[Send]:
    with tritonclient.http.InferenceServerClient(server.address) as client:

        def send(model: str, value: int, **sequence: Any) -> int:
            result = client.infer(model, _inputs(tritonclient.http, value), **sequence)
            return int(result.as_numpy("OUTPUT").flat[0])

        yield send


@contextmanager
def grpc(server: Server) -> Iterator[Send]:
    with tritonclient.grpc.InferenceServerClient(server.wait_for(r"gRPC\s+(\S+)")[1]) as client:

        def send(model: str, value: int, **sequence: Any) -> int:
            result = client.infer(model, _inputs(tritonclient.grpc, value), **sequence)
            return int(result.as_numpy("OUTPUT").flat[0])

        yield send


@contextmanager
def stream(server: Server) -> Iterator[Send]:
    with tritonclient.grpc.InferenceServerClient(server.wait_for(r"gRPC\s+(\S+)")[1]) as client:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))

        def send(model: str, value: int, **sequence: Any) -> int:
            client.async_stream_infer(model, _inputs(tritonclient.grpc, value), **sequence)
            result, error = answers.get(timeout=30)
            if error is not None:
                raise error
            return int(result.as_numpy("OUTPUT").flat[0])

        yield send
        client.stop_stream()


WAYS = {"HTTP": http, "gRPC": grpc, "gRPC stream": stream}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_way
@pytest.mark.parametrize(("model", "adds_id"), [("sequence_sums", True), ("row_sums", False)])
def test_interleaved_sequences_end_with_their_sums(server: Server, way: Any, model: str, adds_id: bool) -> None:
    ids = range(7001, 7006)
    with way(server) as send:
        for step in range(4):
            answers = [
                send(
                    model, number % 10 * 10**step, sequence_id=number, sequence_start=step == 0, sequence_end=step == 3
                )
                for number in ids
            ]
    assert answers == [number % 10 * 1111 + (number if adds_id else 0) for number in ids]


@every_way
def test_a_request_without_a_start_is_refused_with_tritons_text(server: Server, way: Any) -> None:
    with way(server) as send, pytest.raises(InferenceServerException) as refused:
        send("sequence_sums", 1, sequence_id=424242)
    assert refused.value.message() == (
        "inference request for sequence 424242 to model 'sequence_sums' must specify the START flag on the first "
        "request of the sequence"
    )


def test_many_clients_with_a_sequence_each(server: Server) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with grpc(server) as send:
                for step in range(10):
                    flags = {"sequence_start": step == 0, "sequence_end": step == 9}
                    total = send("sequence_sums", step, sequence_id=number, **flags)
                assert total == 45 + number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(9000 + number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_a_python_model_gets_its_state_back(server: Server) -> None:
    with Client(server.address) as client:
        answers = []
        for step, name in enumerate(["a", "b", "a", "b", "a"]):
            parameters = {"sequence_id": f"state-{name}", "sequence_start": step < 2, "sequence_end": step == 4}
            answer = client.infer("remembering", tensor("X", "INT32", [1], [step + 1]), parameters=parameters)
            assert [output["name"] for output in answer.json["outputs"]] == ["Y"]
            answers.append(answer.json["outputs"][0]["data"][0])
    assert answers == [0, 0, 1, 2, 4]
