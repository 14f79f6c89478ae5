"""Which target an inference request goes to, found by the first bytes of its message."""

from collections.abc import Callable
from typing import Final

from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from protocol.grpc_route import read_route
from protocol.model_version import parse_version
from protocol.protobuf_wire import field_head

_MAX_ROUTES: Final = 1024
# Model name and version with their heads, each under 128 bytes: only such are kept.
_HEAD_BYTES: Final = 260
_VERSION: Final = 0x12


class Routes:
    """Targets by the bytes of the fields `model_name` and `model_version`, as every writer of protobuf begins with."""

    def __init__(self, resolve: Callable[[str, int], Target]) -> None:
        self._resolve = resolve
        self._known: dict[bytes, Target] = {}

    def clear(self) -> None:
        """Forget every target: models have come or gone."""
        self._known.clear()

    def find(self, message: Buffer) -> Target:
        """Return the target of a serialised ModelInferRequest.

        Raises:
            ServingError: there is none, or the message is none.
        """
        head = message if type(message) is bytes else bytes(message[:_HEAD_BYTES])
        try:
            end = head[1] + 2
            if head[end] == _VERSION:
                end += head[end + 1] + 2
        except IndexError:
            end = len(head)
        key = head[:end]
        return self._known.get(key) or self._find(message, key)

    def _find(self, message: Buffer, key: bytes) -> Target:
        name, version, _ = read_route(message)
        target = self._resolve(name, parse_version(version))
        fields = [(number, text.encode()) for number, text in ((1, name), (2, version)) if text]
        if key == b"".join(field_head(number, len(text)) + text for number, text in fields):
            if len(self._known) >= _MAX_ROUTES:
                self._known.clear()
            self._known[key] = target
        return target
