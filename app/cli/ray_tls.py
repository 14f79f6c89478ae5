"""The certificates with which Ray's processes talk to each other where `RAY_USE_TLS` is set."""

import os

_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def ray_tls_fault() -> str:
    """Return why a local Ray could not use its certificates, "" if it can, or uses none.

    Ray itself aborts without a word to who has started it, who then waits 30 s for it.
    """
    from app.edge.server_tls import ServerTls

    if os.environ.get("RAY_USE_TLS", "").lower() not in ("1", "true"):
        return ""
    if missing := [name for name in _FILES if not os.environ.get(name)]:
        return f"RAY_USE_TLS is set, which needs {' and '.join(missing)} too"
    certificate, key, root = (os.environ[name] for name in _FILES)
    try:
        ServerTls(certificate, key, client_root=root, alpn="h2")
    except OSError as error:  # ssl.SSLError is one
        return f"RAY_USE_TLS is set, but its certificates cannot be used: {error}"
    return ""
