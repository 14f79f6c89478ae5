"""Whose client is being told an error: how the log knows the trace of the request."""

from contextvars import ContextVar
from typing import Final

from protocol.trace import Trace

error_trace: Final[ContextVar[Trace | None]] = ContextVar("error_trace", default=None)
"""Set while the error of a traced request goes to its client."""
