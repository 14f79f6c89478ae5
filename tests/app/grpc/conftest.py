from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.app.grpc.server import Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.url, [("grpc.max_receive_message_length", -1)]) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)
