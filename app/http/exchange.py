"""What stands between a connection and whoever answers a request that cannot take the direct way."""

from typing import Protocol


class Exchange(Protocol):
    """One request and its answer."""

    def start(self) -> None:
        """Begin; the connection may be told before this returns."""
        ...

    def disconnect(self) -> None:
        """The client has gone: give up, and tell the connection nothing more."""
        ...
