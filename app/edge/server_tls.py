"""TLS of a port: a certificate, and with a root certificate clients that have to show one of theirs."""

import logging
import os
import ssl
from typing import Final

HTTP_1: Final = "http/1.1"
HTTP_2: Final = "h2"

logger = logging.getLogger(__name__)


class ServerTls:
    """The context of a listener; a certificate that is renewed in place is used for new connections.

    Args:
        certificate: file with the server's certificate and those between it and the root, PEM.
        key: file with its key, PEM, not encrypted.
        alpn: the protocol that the port speaks, as TLS calls it.
        client_root: file with the certificates that must have signed a client's, PEM; "" asks clients for none.

    Raises:
        OSError: a file cannot be read.
        ssl.SSLError: a file does not hold what it should.
    """

    def __init__(self, certificate: str, key: str, alpn: str, client_root: str = "") -> None:
        self._files = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols([alpn])
        _load(self.context, certificate, key)
        if client_root:
            _load_root(self.context, client_root)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._stamps = self._read_stamps()

    def reload_if_changed(self) -> bool:
        """Load certificate and key again if a file is a new one; a pair that does not fit is left aside."""
        stamps = self._read_stamps()
        if stamps == self._stamps or None in stamps:
            return False
        self._stamps = stamps
        try:
            # In a context of its own first: a key that does not fit must not spoil the one in use.
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *self._files)
            _load(self.context, *self._files)
        except (OSError, ssl.SSLError) as error:
            logger.error("the new TLS certificate cannot be used, the old one stays: %s", error)
            return False
        logger.info("loaded a new TLS certificate")
        return True

    def _read_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple([_stamp(path) for path in self._files])


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a pair; what OpenSSL says names no file, and it would ask a terminal for the password of a key."""
    for path in (certificate, key):
        open(path, "rb").close()
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise _fault(f"{certificate} and {key} are not a certificate and its unencrypted key", error) from error


def _load_root(context: ssl.SSLContext, path: str) -> None:
    open(path, "rb").close()
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise _fault(f"{path} holds no certificates", error) from error


def _fault(what: str, error: ssl.SSLError) -> ssl.SSLError:
    return ssl.SSLError(error.errno, f"{what}: {error}")  # of the text alone, Python would print a tuple


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
