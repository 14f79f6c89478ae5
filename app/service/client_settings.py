"""The trace and log settings that clients read and change, at whichever ingress."""

from collections.abc import Mapping
from typing import Any, Protocol

from app.service.health import Health
from app.service.log_settings import LogSettings
from app.service.trace_settings import TraceSettings
from app.trace.tracing import Tracing
from protocol.errors import InvalidArgument


class ClientState(Protocol):
    """What clients have set for all ingresses of the cluster."""

    async def change(self, rows: Mapping[str, Any]) -> None:
        """Set rows (None: remove them); returns when the ingresses have `ClientSettings.take`n them.

        Raises:
            Unavailable: they cannot be kept at present, and nothing is changed.
        """
        ...


class ClientSettings:
    """Both sets of settings as this ingress has taken them; `tracing` hears when those of traces may differ."""

    def __init__(self, trace: TraceSettings, log: LogSettings, health: Health, tracing: Tracing) -> None:
        self._trace = trace
        self._log = log
        self._health = health
        self._tracing = tracing
        self.state: ClientState | None = None

    def take(self, state: Mapping[str, Any]) -> None:
        """Make what clients have set be this, and nothing else."""
        self._trace.take(state)
        self._log.take(state)
        self._tracing.settings_changed()

    def trace(self, model: str = "") -> dict[str, Any]:
        """Return the trace settings of the server or, as far as they differ, of a model.

        `trace_count` is how many more this ingress traces, as in Triton's trace extension.

        Raises:
            InvalidArgument: there is no such model, or it is not ready (Triton's code for it).
        """
        self._check_traced(model)
        return {**self._trace.get(model), "trace_count": str(self._tracing.count_left(model))}

    async def update_trace(self, changes: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Change trace settings (None: back to the default) and return all; raises as `trace`."""
        self._check_traced(model)
        await self._change(self._trace.read(changes, model))
        return self.trace(model)

    def _check_traced(self, model: str) -> None:
        if model and not self._health.model_ready(model):
            raise InvalidArgument(f"Request for unknown model : {model}")

    def log(self, model: str = "") -> dict[str, Any]:
        """Return the log settings, or the levels of a model.

        Raises:
            NotFound: there is no such model.
        """
        if model:
            self._health.check_known(model)
        return self._log.get(model)

    async def update_log(self, changes: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Change log settings, or levels of a model (None: back to the server's), and return all; raises as `log`."""
        self.log(model)
        await self._change(self._log.read(changes, model))
        return self._log.get(model)

    async def _change(self, rows: Mapping[str, Any]) -> None:
        if rows:
            assert self.state is not None
            await self.state.change(rows)
