"""Every case of the table over one connection that is kept open, and the server goes on as if nothing had been."""

import re
from collections.abc import Iterator

import pytest

from tests.protocol.cases import CASES, Case
from tests.serving import Answer, Client, Server, infer_path, tensor

MAX_BODY_BYTES = 64 << 20
PRIVATE = re.compile(rb"Traceback|File \"|\.py\b|0x[0-9a-f]{8}|/tmp/|/home/|/root/|site-packages|object at ")
GOOD = [tensor(name, "INT32", [1, 16], list(range(16))) for name in ("INPUT0", "INPUT1")]


@pytest.fixture(scope="module")
def connection(server: Server) -> Iterator[tuple[Client, set[int]]]:
    """One connection for the whole table, and the processes that were there before it."""
    with server.client() as client:
        yield client, server.replica_pids()


def send(client: Client, case: Case) -> Answer:
    length = {} if case.json_length is None else {"Inference-Header-Content-Length": str(case.json_length)}
    return client.request("POST", infer_path(case.model), case.body, length)


SENT = [case for case in CASES if len(case.body) <= MAX_BODY_BYTES]


@pytest.mark.parametrize("case", SENT, ids=[case.id for case in SENT])
def test_case_gets_its_answer_and_the_connection_goes_on(connection: tuple[Client, set[int]], case: Case) -> None:
    client, _ = connection
    port = client.local_port
    answer = send(client, case)
    assert answer.status == case.status, answer.body[:1000]
    if case.status == 200:
        assert case.text.encode() in answer.body
    else:
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.body) <= 1024
        assert case.text in answer.error
        assert not PRIVATE.search(answer.body)
    after = client.infer("simple", *GOOD)
    assert (after.status, client.local_port) == (200, port)
    assert after.json["outputs"][1]["data"] == [0] * 16


def test_same_processes_run_after_all_cases(connection: tuple[Client, set[int]], server: Server) -> None:
    _, before = connection
    assert server.replica_pids() == before


@pytest.mark.parametrize("case", [case for case in CASES if case not in SENT], ids=lambda case: case.id)
def test_body_over_the_limit_is_refused_and_the_next_connection_serves(server: Server, case: Case) -> None:
    with server.client() as client:
        # The answer may come, and the connection end, before all of the body has been taken.
        client.send("POST", infer_path(case.model), None, {"Content-Length": str(len(case.body))})
        answer = client.receive()
    assert answer.status == 400
    assert answer.headers.get("connection") == "close"
    assert "--http-max-input-size" in answer.error
    assert server.infer("simple", *GOOD).status == 200
