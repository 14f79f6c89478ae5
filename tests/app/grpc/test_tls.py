"""TLS and mutual TLS on the gRPC port, with certificates made here."""

import contextlib
import socket
import ssl
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.edge.server_tls import HTTP_2, ServerTls
from app.grpc.options import GrpcOptions
from app.http2.limits import Http2Limits
from tests.app.grpc.server import request, serving
from tests.certificates import Authority, KeyPair
from tests.serving import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(pair: KeyPair, client_root: str = "") -> ServerTls:
    return ServerTls(str(pair.certificate), str(pair.key), HTTP_2, client_root)


def test_tls(authority: Authority) -> None:
    with serving(tls=tls(authority.issue("server"))) as server:
        credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        with grpc.secure_channel(server.url, credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            asked = request(values=[1.0] * 300_000)
            assert stub.ModelInfer(asked).raw_output_contents[0] == asked.raw_input_contents[0]


def test_mutual_tls(authority: Authority) -> None:
    client = authority.issue("client")
    root = authority.certificate.read_bytes()
    with serving(tls=tls(authority.issue("server"), str(authority.certificate))) as server:
        known = grpc.ssl_channel_credentials(root, client.key.read_bytes(), client.certificate.read_bytes())
        with grpc.secure_channel(server.url, known) as channel:
            assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest()).live
        with grpc.secure_channel(server.url, grpc.ssl_channel_credentials(root)) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest())
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def _serial_number(authority: Authority, port: int) -> object:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        certificate = client.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


def test_a_renewed_certificate_is_shown_to_new_connections(authority: Authority) -> None:
    pair = authority.issue("server")
    with serving(tls=tls(pair)) as server:
        old = _serial_number(authority, server.port)
        authority.issue("server")
        wait_until(lambda: _serial_number(authority, server.port) != old, "the new certificate", 10.0)


def test_a_client_without_alpn_is_refused(authority: Authority) -> None:
    with serving(tls=tls(authority.issue("server"))) as server:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        plain = socket.create_connection(("127.0.0.1", server.port))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            received = client.recv(1000)
            assert received[3] == 7  # GOAWAY
            assert received[16] == 12  # INADEQUATE_SECURITY


def test_a_handshake_must_be_complete_in_time(authority: Authority) -> None:
    options = GrpcOptions(http2=Http2Limits(preface_timeout_s=0.2))
    with (
        serving(options, tls=tls(authority.issue("server"))) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        assert client.recv(1) == b""
