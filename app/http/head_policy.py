"""What an inference request needs apart from being sent to its model, decided once for each head that is seen.

A request whose head asks for nothing of this takes the direct way; the others are handled by an exchange.
"""

from app.edge.header_forwarding import HeaderForwarding
from app.edge.restricted_api import INFERENCE, RestrictedApis
from app.http.content_coding import DEFLATE, GZIP, IDENTITY, UnsupportedCoding, choose
from app.http.head import INFER, Head
from protocol.errors import InvalidArgument, ServingError


class HeadPolicy:
    """The operator's settings that concern the heads of inference requests."""

    def __init__(self, restricted: RestrictedApis | None = None, forwarding: HeaderForwarding | None = None) -> None:
        self._restricted = restricted or RestrictedApis()
        self._forwarding = forwarding or HeaderForwarding("")

    def apply(self, head: Head) -> None:
        """Set what the head of an inference request means."""
        try:
            self._restricted.check(INFERENCE, head.headers)
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


def _check_coding(head: Head) -> None:
    if head.content_encoding == IDENTITY:
        head.content_encoding = b""
    if not head.content_encoding:
        return
    if head.action is not INFER:
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
    if head.content_encoding not in (GZIP, DEFLATE):
        raise UnsupportedCoding("Unsupported compression type")
