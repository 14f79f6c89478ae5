"""Keepalive, both ways: whether a client pings too often, and when to ping a silent one.

The rules are those of gRPC's core library, as Triton's --grpc-keepalive and --grpc-http2 flags set them.
"""

from typing import Final, Literal

from app.http2.limits import Http2Limits

_INTERVAL_WITHOUT_CALLS_S: Final = 7200.0


class Pings:
    """One connection's pings. Set `heard` whenever the client sends anything."""

    __slots__ = ("_last_ping_s", "_limits", "_pinged_s", "_quiet_since_s", "_strikes", "heard")

    def __init__(self, limits: Http2Limits, now_s: float) -> None:
        self._limits = limits
        self._last_ping_s = float("-inf")
        self._strikes = 0
        self._quiet_since_s = now_s
        self._pinged_s = 0.0
        self.heard = False

    def too_many(self, now_s: float, data_sent: bool, calls: bool) -> bool:
        """Take a client's ping; True when it has come too early too often without an answer sent in between."""
        limits = self._limits
        if data_sent:
            self._strikes = 0
            self._last_ping_s = float("-inf")
        relaxed = calls or limits.keepalive_permit_without_calls
        interval_s = limits.min_ping_interval_s if relaxed else _INTERVAL_WITHOUT_CALLS_S
        if now_s < self._last_ping_s + min(interval_s, _INTERVAL_WITHOUT_CALLS_S):
            self._strikes += 1
        self._last_ping_s = now_s
        return 0 < limits.max_ping_strikes < self._strikes

    def sweep(self, now_s: float, calls: bool) -> Literal["", "ping", "dead"]:
        """Return what is to be done about a client's silence."""
        limits = self._limits
        if self.heard:
            self.heard = False
            self._quiet_since_s = now_s
            self._pinged_s = 0.0
        elif self._pinged_s:
            if now_s - self._pinged_s > limits.keepalive_timeout_s:
                return "dead"
        elif now_s - self._quiet_since_s > limits.keepalive_time_s and (calls or limits.keepalive_permit_without_calls):
            self._pinged_s = now_s
            return "ping"
        return ""
