"""What a port asks of a request before its body is read, besides Triton's restricted APIs."""

from collections.abc import Iterable

from app.edge.api_keys import HEADER, ApiKeys
from app.edge.scope import MANAGE, NO_KEY, scope_of
from protocol.errors import Restricted


class Access:
    """Asks for API keys, if there are any; `serves_admin` says whether the port serves the admin API."""

    def __init__(self, keys: ApiKeys | None = None, *, admin: bool = True) -> None:
        self._keys = ApiKeys() if keys is None else keys
        self.serves_admin = admin

    def __bool__(self) -> bool:
        return bool(self._keys) or not self.serves_admin

    def is_read(self, name: bytes) -> bool:
        """Whether a header of this name, in lower case, decides anything here."""
        return name == HEADER and bool(self._keys)

    def check(self, category: str, operation: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let a request for an endpoint or a gRPC method through; the headers' names are in lower case.

        Raises:
            Unauthenticated, Forbidden: as `ApiKeys.check`.
            Restricted: it manages, and this port does not serve that.
        """
        scope = scope_of(category, operation)
        if scope == MANAGE and not self.serves_admin:
            raise Restricted("this port does not serve the admin API")
        if scope != NO_KEY and self._keys:
            self._keys.check(scope, headers)
