"""The certificates with which Ray's processes talk to each other where `RAY_USE_TLS` is set."""

import contextlib
import os
import ssl

_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_ADDRESS = "127.0.0.1"
"""Where the processes of a local Ray meet."""


def ray_tls_fault() -> str:
    """Return why a local Ray could not use its certificates, "" if it can, or uses none.

    Ray does not say so: its processes abort, or refuse each other, while `ray.init` goes on trying for minutes.
    """
    if os.environ.get("RAY_USE_TLS", "").lower() not in ("1", "true"):
        return ""
    if missing := [name for name in _FILES if not os.environ.get(name)]:
        return f"RAY_USE_TLS is set, which needs {' and '.join(missing)} too"
    certificate, key, root = (os.environ[name] for name in _FILES)
    try:
        names = _names(certificate, key, root)
    except OSError as error:  # ssl.SSLError is one
        return f"RAY_USE_TLS is set, but its certificates cannot be used: {error}"
    if _ADDRESS not in names:
        return (
            f"RAY_USE_TLS is set, but {certificate} is not for {_ADDRESS} (subjectAltName), where Ray's processes meet"
        )
    return ""


def _names(certificate: str, key: str, root: str) -> set[str]:
    """Return all names of the certificate, of whichever kind, as gRPC reads them, for a client that trusts `root`."""
    from app.edge.server_tls import HTTP_2, ServerTls

    server = ServerTls(certificate, key, HTTP_2, client_root=root).context
    server.verify_mode = ssl.CERT_NONE
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it verifies, but no more strictly than gRPC
    client.check_hostname = False
    client.load_verify_locations(root)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for end in (*ends, *ends):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    peer = ends[0].getpeercert() or {}
    return {str(entry[1]) for entry in peer.get("subjectAltName", ())}
