"""Which target an inference request goes to, found by the first bytes of its message."""

import re
from collections.abc import Callable
from typing import Final

from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from protocol.errors import InvalidArgument
from protocol.grpc_route import read_route
from protocol.protobuf_wire import field_head

_MAX_VERSION: Final = 2**63 - 1
_MAX_ROUTES: Final = 1024
# Model name and version with their heads, each under 128 bytes: only such are kept.
_HEAD_BYTES: Final = 260
_VERSION: Final = 0x12
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


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


def parse_version(version: str) -> int:
    """Return the number of a model version, -1 for none.

    Raises:
        InvalidArgument: with Triton's text.
    """
    if not version:
        return -1
    if not _INTEGER.fullmatch(version) or abs(int(version)) > _MAX_VERSION:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{version[:64]}' (details: stol), "
            "version should be an integral value > 0"
        )
    number = int(version)
    if number < 0:
        raise InvalidArgument(
            f"invalid model version specified '{version[:64]}' , version should be an integral value > 0"
        )
    return number
