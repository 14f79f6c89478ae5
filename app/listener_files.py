"""The files of listeners, which ingresses would find wrong only once those before them have gone."""

from app.edge.api_keys import ApiKeys
from app.edge.server_tls import HTTP_1, ServerTls
from app.http.unix_socket import UnixSocket
from app.settings import Settings


def check_listeners(settings: Settings) -> None:
    """See that certificates and keys, and those of the API, can be used, and that there can be a Unix socket.

    Raises:
        ValueError: they cannot, or there cannot.
    """
    try:
        ApiKeys(settings.api_key, settings.api_key_file)
    except (OSError, ValueError) as error:
        raise ValueError(f"--api-key-file: {error}") from None
    for protocol in ("http", "grpc"):
        use, mutual, certificate, key, root = (
            getattr(settings, f"{protocol}_{name}")
            for name in ("use_ssl", "use_ssl_mutual", "server_cert", "server_key", "root_cert")
        )
        if use and getattr(settings, f"allow_{protocol}"):
            try:
                ServerTls(certificate, key, HTTP_1, root if mutual else "")
            except OSError as error:  # which ssl.SSLError is, too
                raise ValueError(f"--{protocol}-use-ssl: {error}") from None
    if settings.http_unix_socket and settings.allow_http:
        try:
            UnixSocket(settings.http_unix_socket).check()
        except OSError as error:
            raise ValueError(f"--http-unix-socket: {error}") from None
