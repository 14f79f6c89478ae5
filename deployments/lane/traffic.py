"""How much a process has sent over all its lanes."""

from typing import Final


class LaneTraffic:
    """Counts the bodies of frames: by socket, and through shared memory."""

    __slots__ = ("shared_bytes", "socket_bytes")

    def __init__(self) -> None:
        self.socket_bytes = 0
        self.shared_bytes = 0


LANE_TRAFFIC: Final = LaneTraffic()
"""Of this process; what it sends is counted by its loop's thread."""
