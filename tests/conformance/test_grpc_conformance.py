"""Triton's answers over gRPC, case by case; and no RPC without a case."""

import re

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from app.grpc.methods import Methods
from tests.conformance import http_cases
from tests.conformance.grpc_case import SERVICE, GrpcCase
from tests.conformance.grpc_cases import CASES

DEFINED = {f"/{SERVICE.full_name}/{method.name}" for method in SERVICE.methods}
SERVED = {path.decode() for path in Methods(reflection=True).by_path}


@pytest.mark.ray
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answers_as_triton(case: GrpcCase, channel: grpc.Channel) -> None:
    case.check(channel)
    # The connection goes on, whatever was asked.
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=60).live


@pytest.mark.parametrize("path", sorted(DEFINED | SERVED | {"/grpc.health.v1.Health/Watch"}))
def test_every_rpc_has_a_case(path: str) -> None:
    assert any(case.full_path == path for case in CASES), "no case for it in grpc_cases.py"


def test_cases_are_many_distinct_and_from_the_catalog() -> None:
    assert len(CASES) + len(http_cases.CASES) >= 300
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(re.fullmatch(r"[3-8](\.\d+)?(, [3-8](\.\d+)?)*", case.section) for case in CASES)
