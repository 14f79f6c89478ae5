"""Bounds how many tracebacks one place in the code logs: requests can make a model fail as often as clients like."""

import logging
from typing import Final

_BURST: Final = 500
_PER_S: Final = 2.0


class TracebackLimit:
    """Lets 500 tracebacks of a place through, and two a second after that; counts what it keeps back."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], _Place] = {}

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether a record may be logged, into whose message goes how many were kept back before it."""
        if not record.exc_info and not record.exc_text:
            return True
        key = (record.pathname, record.lineno)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(record.created)
        place.left = min(_BURST, place.left + max(0.0, record.created - place.at_s) * _PER_S)
        place.at_s = record.created
        if place.left < 1:
            place.kept_back += 1
            return False
        place.left -= 1
        if place.kept_back:
            record.msg = f"{record.getMessage()} ({place.kept_back} times before, without a line)"
            record.args = ()
            place.kept_back = 0
        return True


class _Place:
    __slots__ = ("at_s", "kept_back", "left")

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        self.left: float = _BURST
        self.kept_back = 0
