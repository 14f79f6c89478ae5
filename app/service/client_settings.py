"""The trace and log settings that clients read and change."""

from typing import Any

from app.service.health import Health
from app.service.log_settings import LogSettings
from app.service.trace_settings import TraceSettings
from protocol.errors import InvalidArgument


class ClientSettings:
    """Both sets of settings of one ingress."""

    def __init__(self, trace: TraceSettings, log: LogSettings, health: Health) -> None:
        self._trace = trace
        self._log = log
        self._health = health

    def apply(self) -> None:
        """Make the log settings hold in this process."""
        self._log.apply()

    def trace(self, model: str = "") -> dict[str, Any]:
        """Return the trace settings of the server or, as far as they differ, of a model.

        Raises:
            NotFound: there is no such model.
            InvalidArgument: it is not ready (Triton's code for it).
        """
        self._check_traced(model)
        return self._trace.get(model)

    def update_trace(self, changes: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Change trace settings (None: back to the default) and return all; raises as `trace`."""
        self._check_traced(model)
        self._trace.update(changes, model)
        return self._trace.get(model)

    def _check_traced(self, model: str) -> None:
        if model and not self._health.model_ready(model):
            raise InvalidArgument(f"Request for unknown model : {model}")

    def log(self) -> dict[str, Any]:
        """Return the log settings."""
        return self._log.get()

    def update_log(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change log settings and return all."""
        self._log.update(changes)
        return self._log.get()
