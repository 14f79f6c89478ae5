"""`--http-header-forward-pattern` and `--grpc-header-forward-pattern`: headers that a model gets as parameters."""

import re
from collections.abc import Iterable

from protocol.errors import InvalidArgument

_CASE_COUNTS = "(?-i)"
"""What a pattern of Triton's begins with that goes by the case; Python has it for parts of a pattern only."""

RESERVED = frozenset(
    {
        "binary_data_output",
        "headers",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
    }
)


class HeaderForwarding:
    """Which headers are forwarded: those in whose name the pattern is found, in any case but where it says `(?-i)`.

    Raises:
        ValueError: the pattern is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        flags = re.NOFLAG if pattern.startswith(_CASE_COUNTS) else re.IGNORECASE
        try:
            self._pattern = re.compile(pattern.removeprefix(_CASE_COUNTS), flags) if pattern else None
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def is_read(self, name: bytes) -> bool:
        """Whether a header of this name is forwarded, or refused because it must not be."""
        return self._pattern is not None and self._pattern.search(name.decode("latin-1")) is not None

    def choose(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the parameters that a request gets from its headers, the names as the client wrote them.

        Raises:
            InvalidArgument: a header that matches has the name of a parameter with a meaning of its own.
        """
        chosen: dict[str, str] = {}
        if self._pattern is None:
            return chosen
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if self._pattern.search(name) is None:
                continue
            if name.lower() in RESERVED or name.lower().startswith("triton_"):
                raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
            chosen[name] = raw_value.decode("utf-8", "replace")
        return chosen
