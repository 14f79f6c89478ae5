"""The lines with which the heads of all responses end."""

import time
from email.utils import formatdate
from typing import Final

_CLOSE: Final = b"Connection: close\r\n"
_KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"


class HeadEnds:
    """Date, which is written once a second; Connection, where HTTP asks for it; the empty line.

    `plain` keeps a connection of HTTP/1.1 open and `keep_alive` one of HTTP/1.0; `close` is for both.
    """

    def __init__(self) -> None:
        self.plain = self.keep_alive = self.close = b""
        self.refresh()

    def refresh(self) -> None:
        """Look at the clock."""
        date = b"Date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        self.plain = date + b"\r\n"
        self.keep_alive = date + _KEEP_ALIVE + b"\r\n"
        self.close = date + _CLOSE + b"\r\n"
