"""TLS and mutual TLS, with certificates made here."""

import datetime
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.grpc.tls import server_context
from tests.app.grpc.server import request, serving


@dataclass
class Pair:
    cert: Path
    key: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Pair(folder / "cert.pem", folder / "key.pem")
    made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


def test_tls(pair: Pair) -> None:
    with serving(ssl_context=server_context(pair.cert, pair.key)) as server:
        credentials = grpc.ssl_channel_credentials(pair.cert.read_bytes())
        with grpc.secure_channel(server.url, credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            asked = request(values=[1.0] * 300_000)
            assert stub.ModelInfer(asked).raw_output_contents[0] == asked.raw_input_contents[0]


def test_mutual_tls(pair: Pair) -> None:
    context = server_context(pair.cert, pair.key, root_file=pair.cert, mutual=True)
    root = pair.cert.read_bytes()
    with serving(ssl_context=context) as server:
        known = grpc.ssl_channel_credentials(root, pair.key.read_bytes(), root)
        with grpc.secure_channel(server.url, known) as channel:
            assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest()).live
        with grpc.secure_channel(server.url, grpc.ssl_channel_credentials(root)) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest())
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_without_alpn_is_refused(pair: Pair) -> None:
    with serving(ssl_context=server_context(pair.cert, pair.key)) as server:
        context = ssl.create_default_context(cafile=str(pair.cert))
        plain = socket.create_connection(("127.0.0.1", server.port))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            received = client.recv(1000)
            assert received[3] == 7  # GOAWAY
            assert received[16] == 12  # INADEQUATE_SECURITY


def test_mutual_tls_needs_roots(pair: Pair) -> None:
    with pytest.raises(ValueError, match="root"):
        server_context(pair.cert, pair.key, mutual=True)
