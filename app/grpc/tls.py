"""TLS for gRPC, as Triton's --grpc-use-ssl and --grpc-use-ssl-mutual set it."""

import ssl
from pathlib import Path


def server_context(
    cert_file: Path, key_file: Path, root_file: Path | None = None, mutual: bool = False
) -> ssl.SSLContext:
    """Return the context of a port: TLS 1.2 and later, ALPN h2; `mutual`: clients show a certificate of `root_file`.

    Raises:
        ValueError: `mutual` without `root_file`.
        OSError: a file cannot be read, or does not hold what it should (ssl.SSLError).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(cert_file, key_file)
    if mutual:
        if root_file is None:
            raise ValueError("mutual TLS needs the root certificates of clients")
        context.load_verify_locations(root_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
