"""The files of listeners, which this machine's ingresses would find wrong only once the models are loaded."""

import click

from app.edge.server_tls import HTTP_1, ServerTls
from app.http.unix_socket import UnixSocket
from app.settings import Settings


def check_listeners(settings: Settings) -> None:
    """See that certificates and keys can be used, and that there can be a Unix socket.

    Raises:
        click.UsageError: they cannot, or there cannot.
    """
    for protocol in ("http", "grpc"):
        use, mutual, certificate, key, root = (
            getattr(settings, f"{protocol}_{name}")
            for name in ("use_ssl", "use_ssl_mutual", "server_cert", "server_key", "root_cert")
        )
        if use and getattr(settings, f"allow_{protocol}"):
            try:
                ServerTls(certificate, key, HTTP_1, root if mutual else "")
            except OSError as error:  # which ssl.SSLError is, too
                raise click.UsageError(f"--{protocol}-use-ssl: {error}") from None
    if settings.http_unix_socket and settings.allow_http:
        try:
            UnixSocket(settings.http_unix_socket).check()
        except OSError as error:
            raise click.UsageError(f"--http-unix-socket: {error}") from None
