"""What one check has found."""

from typing import NamedTuple

OK, WARNING, ERROR = "ok", "warning", "error"


class Finding(NamedTuple):
    """A level, what was checked, and a sentence."""

    level: str
    check: str
    text: str
