"""The grpc-timeout header."""

import re
from typing import Final

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def parse_timeout(value: bytes) -> float | None:
    """Return the seconds in a grpc-timeout, None when it is malformed."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else int(match[1]) * _SECONDS[match[2]]
