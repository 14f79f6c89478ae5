"""Where commands print tables: a terminal has a width, a pipe and a file have none."""

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

_ANY_WIDTH: Final = 10_000


def table_console() -> "Console":
    """Return a console as wide as the terminal, or as `COLUMNS`; elsewhere no table is too wide for it."""
    from rich.console import Console

    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return Console(highlight=False, width=None if bounded else _ANY_WIDTH)
