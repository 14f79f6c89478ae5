"""Where commands print tables: a terminal has a width, a pipe and a file have none."""

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_ANY_WIDTH: Final = 10_000


def table_console() -> "Console":
    """Return a console as wide as the terminal, or as `COLUMNS`; elsewhere no table is too wide for it."""
    from rich.console import Console

    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return Console(highlight=False, width=None if bounded else _ANY_WIDTH)


def cut_line(text: str, style: str, width: int) -> "Text":
    """Return a line that ends with an ellipsis where it is too long for the terminal."""
    from rich.text import Text

    line = Text(text, style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
