"""What clients were refused: counted, and in the log by a line for the first of a kind and one a second for others."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final

from app.trace.error_trace import error_trace
from deployments.core.request_meter import RequestMeters
from deployments.lane.sink import Target
from deployments.log.line_format import about_trace
from protocol.trace import Trace

logger = logging.getLogger(__name__)

_WINDOW_S: Final = 1.0
_MAX_CHARACTERS: Final = 512
_REQUEST_ID: Final = re.compile(r"\[request id: (.+?)\] ")
_UNKNOWN_ID: Final = "<id_unknown>"

CallLater = Callable[[float, Callable[["_Kind"], None], "_Kind"], Any]


class RefusalLog:
    """Notes error answers; those of one protocol and status are a kind, of which a second has one line at most.

    So whatever clients send makes no more lines than there are kinds. What a line leaves out, it counts. `meters` count
    those that no model had; what a model had is counted as its own.
    """

    def __init__(self, call_later: CallLater, meters: RequestMeters | None = None) -> None:
        self._call_later = call_later
        self._meters = meters
        self._kinds: dict[str, _Kind] = {}

    def note(
        self,
        kind: str,
        message: str,
        transport: asyncio.BaseTransport | None,
        target: Target | None = None,
        *,
        fault: bool = False,
    ) -> None:
        """Note one.

        Args:
            kind: protocol and status; one of a few.
            message: what the client was told.
            transport: the client's connection.
            target: the model that was to get the request, if it was found.
            fault: whether the server's side is at fault, which is a warning; else it is information.
        """
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Kind(kind, logging.WARNING if fault else logging.INFO)
        if found.waits:
            found.left_out += 1
            found.last = message
            found.last_trace = error_trace.get()
            return
        if not logger.isEnabledFor(found.level):
            return
        self._wait(found)
        whose: dict[str, Any] = {}
        if target is not None:
            whose = {"model": target.model_name, "version": target.version}
        identified = _REQUEST_ID.match(message)
        if identified and identified[1] != _UNKNOWN_ID:
            whose["request_id"] = identified[1][:_MAX_CHARACTERS]
        trace = error_trace.get()
        if trace is not None:
            whose |= trace.log_fields()
        logger.log(found.level, "%s for %s: %s", kind, _peer(transport), _shortened(message), extra=whose)

    def count(self, wire: int, code: int) -> None:
        """Count one whose request no model had."""
        if self._meters is not None:
            self._meters.refuse(wire, code)

    def _wait(self, kind: "_Kind") -> None:
        kind.waits = True
        self._call_later(_WINDOW_S, self._end, kind)

    def _end(self, kind: "_Kind") -> None:
        """Tell of what came since the last line."""
        kind.waits = False
        if kind.left_out:
            text, extra = "%s %d times more, at last: %s", about_trace("", None, kind.last_trace)
            logger.log(kind.level, text, kind.name, kind.left_out, _shortened(kind.last), extra=extra)
            kind.left_out = 0
            kind.last = ""
            kind.last_trace = None
            self._wait(kind)


class _Kind:
    __slots__ = ("last", "last_trace", "left_out", "level", "name", "waits")

    def __init__(self, name: str, level: int) -> None:
        self.name = name
        self.level = level
        self.waits = False
        self.left_out = 0
        self.last_trace: Trace | None = None
        self.last = ""


def _shortened(message: str) -> str:
    return message if len(message) <= _MAX_CHARACTERS else f"{message[:_MAX_CHARACTERS]}…"


def _peer(transport: asyncio.BaseTransport | None) -> str:
    peer = None if transport is None else transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local client"
