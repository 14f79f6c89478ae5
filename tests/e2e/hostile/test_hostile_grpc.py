"""Broken and abusive gRPC clients over real sockets: each gets its answer, and the server goes on."""

import grpc
import pytest

from tests.hostile.grpc_cases import CASES, LIMIT_BYTES, WireCase
from tests.hostile.grpc_wire import talk
from tests.hostile.watch import INFER, MAX_ERROR_BYTES, PRIVATE, Watch, assert_did_not_wait
from tests.protocol.grpc_case import GrpcCase
from tests.protocol.grpc_cases import GRPC_CASES

# The empty message, which names no model, never comes as far as the codec that the table is for.
SENT = [case for case in GRPC_CASES if 0 < len(case.body) < LIMIT_BYTES]

WAITS_S: list[float] = []


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case_gets_its_answer_and_the_server_goes_on(hostile: Watch, case: WireCase) -> None:
    with hostile.good_grpc_client() as beside:
        got = talk(hostile.grpc_address, case.pieces, case.stream_id, 5.0, case.greet)
    WAITS_S.extend(beside.waits_s)
    assert got.outcome == case.outcome, got
    assert case.text in str(got.statuses)
    assert got.size <= MAX_ERROR_BYTES
    assert not PRIVATE.search(got.text)
    hostile.assert_well()


@pytest.mark.parametrize("case", SENT, ids=[case.id for case in SENT])
def test_message_of_the_codec_gets_its_status(hostile: Watch, case: GrpcCase) -> None:
    infer = hostile.channel.unary_unary(INFER)
    code, details = 0, ""
    try:
        infer(case.body, timeout=10.0)
    except grpc.RpcError as error:
        code, details = error.code().value[0], error.details()
    assert (code, details) == (case.code, details)
    assert case.text in details
    assert len(details) <= MAX_ERROR_BYTES
    assert not PRIVATE.search(details.encode())
    hostile.assert_well()


def test_a_good_client_beside_all_of_them_did_not_wait(hostile: Watch) -> None:
    assert_did_not_wait(WAITS_S)


def test_calls_that_are_given_up_leave_nothing_behind(hostile: Watch) -> None:
    infer = hostile.channel.unary_unary(INFER)
    body = next(case.body for case in SENT if not case.code)
    for _ in range(200):
        infer.future(body, timeout=10.0).cancel()
    hostile.assert_well()
