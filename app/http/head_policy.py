"""Whether a request is refused by its head, and what an inference request needs apart from being sent to its model.

It is decided once for each head of an inference request that is seen. A request whose head asks for nothing of this
takes the direct way; the others are handled by an exchange.
"""

from app.edge.access import Access
from app.edge.header_forwarding import HeaderForwarding
from app.edge.restricted_api import INFERENCE, RestrictedApis
from app.http.content_coding import DEFLATE, GZIP, IDENTITY, UnsupportedCoding, choose
from app.http.head import INFER, Head
from app.http.routes import ROUTE_TABLE
from protocol.errors import InvalidArgument, ServingError


class HeadPolicy:
    """The operator's settings that concern heads.

    `category` is that of everything on a port that has no routes of the API.
    """

    def __init__(
        self,
        restricted: RestrictedApis | None = None,
        forwarding: HeaderForwarding | None = None,
        access: Access | None = None,
        category: str = "",
    ) -> None:
        self._restricted = restricted or RestrictedApis()
        self._forwarding = forwarding or HeaderForwarding("")
        self._access = access or Access()
        self._category = category

    def __bool__(self) -> bool:
        return bool(self._restricted or self._forwarding or self._access)

    def is_read(self, name: bytes) -> bool:
        """Whether a header of this name, in lower case, decides anything here."""
        return self._restricted.is_read(name) or self._forwarding.is_read(name) or self._access.is_read(name)

    def apply(self, head: Head) -> None:
        """Set what a head means, and that it is refused if it is: nobody uploads a body in vain."""
        try:
            if head.action is None:
                self._check_route(head)
                return
            self._check(INFERENCE, head.action, head)
            head.forwarded = self._forwarding.choose(head.raw_headers)
            _check_coding(head)
            if head.action is INFER and head.json_length_error:
                raise InvalidArgument(head.json_length_error)
        except ServingError as error:
            head.refusal = error
            return
        if head.action is INFER:
            head.response_coding = choose(head.accept_encoding)
            head.direct = not (head.content_encoding or head.response_coding or head.forwarded)

    def _check_route(self, head: Head) -> None:
        if self._category:
            self._check(self._category, "", head)
        elif self._restricted or self._access:
            match = ROUTE_TABLE.match(head.url.partition(b"?")[0].decode("latin-1"))
            if match is not None:
                self._check(match.category, match.endpoints.get(_method(head), ""), head)
                self._restricted.check(match.also, head.headers)

    def _check(self, category: str, operation: str, head: Head) -> None:
        self._access.check(category, operation, head.headers)
        self._restricted.check(category, head.headers)


def _method(head: Head) -> str:
    return "GET" if head.method == b"HEAD" else head.method.decode("ascii")


def _check_coding(head: Head) -> None:
    if head.content_encoding == IDENTITY:
        head.content_encoding = b""
    if not head.content_encoding:
        return
    if head.action is not INFER:
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
    if head.content_encoding not in (GZIP, DEFLATE):
        raise UnsupportedCoding("Unsupported compression type")
