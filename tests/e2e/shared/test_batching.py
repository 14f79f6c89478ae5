"""Requests of many clients run together."""

import json
import socket
from contextlib import ExitStack

import numpy as np
import pytest

from tests.repositories import needs_torch
from tests.serving import Server, infer_path, tensor

CLIENT_COUNT = 64
ROUNDS = 20


def receive(connection: socket.socket) -> bytes:
    """Return the body of one answer."""
    data = connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK"), data
    (length,) = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < length:
        body += connection.recv(65536)
    return body


def request(server: Server, model: str, name: str, rows: np.ndarray) -> bytes:
    body = json.dumps({"inputs": [tensor(name, "FP32", rows.shape, rows.ravel().tolist())]}).encode()
    head = f"POST {infer_path(model)} HTTP/1.1\r\nHost: {server.address}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("model", "version", "name", "width"),
    [
        ("digits", 2, "IMAGE", 64),
        pytest.param("digits_torch", 1, "INPUT__0", 64, marks=needs_torch),
        ("digits_postprocess", 1, "SCORES", 10),
    ],
    ids=["onnx", "torch", "python"],
)
def test_requests_of_64_clients_run_at_least_4_at_a_time(
    server: Server, model: str, version: int, name: str, width: int
) -> None:
    rows = np.random.default_rng(0).random((1, width)).astype(np.float32)
    sent = request(server, model, name, rows)
    before = server.statistics(model, version)
    bodies = set()
    with ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        connections = [
            stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(CLIENT_COUNT)
        ]
        for _ in range(ROUNDS):
            for connection in connections:
                connection.sendall(sent)
            bodies.update(map(receive, connections))
    after = server.statistics(model, version)
    inferences = after["inference_count"] - before["inference_count"]
    executions = after["execution_count"] - before["execution_count"]
    assert inferences == CLIENT_COUNT * ROUNDS
    assert executions <= inferences / 4
    assert after["batch_stats"][-1]["batch_size"] <= 64
    answers = [np.array(json.loads(body)["outputs"][-1]["data"]) for body in bodies]
    assert all(np.allclose(answer, answers[0], atol=1e-5) for answer in answers)
