"""Headers that belong to an error."""

from collections.abc import Sequence
from typing import Final

from app.http.content_coding import UnsupportedCoding
from protocol.errors import ServingError, Unauthenticated

_SUPPORTED: Final = ((b"Accept-Encoding", b"gzip, deflate"),)
_BEARER: Final = ((b"WWW-Authenticate", b"Bearer"),)


def headers_of(error: ServingError) -> Sequence[tuple[bytes, bytes]]:
    """Return the codings that would do where one did not, and how to say who one is where nobody was known."""
    if isinstance(error, UnsupportedCoding):
        return _SUPPORTED
    return _BEARER if isinstance(error, Unauthenticated) else ()
