"""Hostile bytes over real sockets: each gets its answer, and the server goes on as if nothing had been."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.hostile import http_bodies, http_framing
from tests.hostile.http_case import BODY_TIMEOUT_S, HEADER_TIMEOUT_S, LIMIT_BYTES, HttpCase, get, post
from tests.hostile.http_wire import HttpExchange, talk
from tests.hostile.watch import MAX_ERROR_BYTES, PRIVATE, Watch, assert_did_not_wait
from tests.protocol.cases import CASES as CODEC_CASES
from tests.protocol.cases import Case

CASES = (*http_framing.CASES, *http_bodies.CASES)
CODEC = [case for case in CODEC_CASES if case.cls in ("F-DEPTH", "F-OUT", "F-PARAM") and len(case.body) <= LIMIT_BYTES]
SLOW_CLIENTS = 100
WAITS_S: list[float] = []


def exchange(hostile: Watch, case: HttpCase) -> HttpExchange:
    """Play a case, in time."""
    count = 0 if case.closes else len(case.statuses)
    started = time.monotonic()
    got = talk(hostile.address, case.pieces, count, case.within_s, case.bodiless, case.linger)
    assert time.monotonic() - started < case.within_s + 0.5
    return got


@pytest.fixture(scope="module")
def slow(hostile: Watch) -> Iterator[dict[str, Future[HttpExchange]]]:
    """What comes of the cases that last seconds, which are played side by side."""
    cases = [case for case in CASES if case.cls == http_bodies.SLOW.cls]
    with ThreadPoolExecutor(len(cases)) as pool:
        yield {case.id: pool.submit(exchange, hostile, case) for case in cases}


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case_gets_its_answer_and_the_server_goes_on(
    hostile: Watch, slow: dict[str, Future[HttpExchange]], case: HttpCase
) -> None:
    with hostile.good_http_client() as beside:
        got = slow[case.id].result(60) if case.id in slow else exchange(hostile, case)
    WAITS_S.extend(beside.waits_s)
    assert got.statuses == case.statuses, (got.answers[-1:], got.rest[:200])
    assert not got.rest
    if case.closes is not None:
        assert got.closed == case.closes
    for answer in got.answers:
        assert not PRIVATE.search(answer.head)
        if answer.status != 200 and not case.bodiless:
            assert answer.error
            assert len(answer.body) <= MAX_ERROR_BYTES
            assert not PRIVATE.search(answer.body)
    if case.text:
        assert case.text.encode() in got.answers[-1].body
    hostile.assert_well()


@pytest.mark.parametrize("case", CODEC, ids=[case.id for case in CODEC])
def test_case_of_the_codec_keeps_its_connection(hostile: Watch, case: Case) -> None:
    length = [] if case.json_length is None else [b"Inference-Header-Content-Length: %d" % int(case.json_length)]
    request = post(case.body, *length, path=b"/v2/models/%s/infer" % case.model.encode())
    with hostile.good_http_client() as beside:
        got = talk(hostile.address, (request + get(),), 2, 5.0)
    WAITS_S.extend(beside.waits_s)
    assert got.statuses == (case.status, 200)
    assert case.text.encode() in got.answers[0].body.replace(b'\\"', b'"')
    if case.status != 200:
        assert case.text in got.answers[0].error
        assert len(got.answers[0].body) <= MAX_ERROR_BYTES
        assert not PRIVATE.search(got.answers[0].body)
    hostile.assert_well()


def test_a_good_client_beside_all_of_them_did_not_wait(hostile: Watch) -> None:
    assert_did_not_wait(WAITS_S)


@pytest.fixture
def slow_clients(hostile: Watch) -> Iterator[list[socket.socket]]:
    """Connections on which half a request was sent."""
    host, _, port = hostile.address.rpartition(":")
    clients = [socket.create_connection((host, int(port)), timeout=5.0) for _ in range(SLOW_CLIENTS)]
    for number, client in enumerate(clients):
        client.sendall(get()[:-2] if number % 2 else post()[:-5])
    yield clients
    for client in clients:
        client.close()


def test_slow_clients_keep_nobody_waiting_and_are_told_to_go(hostile: Watch, slow_clients: list[socket.socket]) -> None:
    until = time.monotonic() + HEADER_TIMEOUT_S / 2
    while time.monotonic() < until:
        started = time.monotonic()
        hostile.assert_well()
        assert time.monotonic() - started < 1.0
    for client in slow_clients:
        client.settimeout(BODY_TIMEOUT_S + 4.0)
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
    hostile.assert_well()
