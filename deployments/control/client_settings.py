"""Log and trace settings that clients have changed, for all ingresses: what becomes of the desired state."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from deployments.control.current_state import CurrentState

MAX_UNLOADED: Final = 1000
"""Of how many models that are not loaded settings are kept: clients may set some for models of ever new names."""


class ClientSettings:
    """Changes them; each row is plain data by a key of the ingresses' own, `<kind>:<setting>:<model>`.

    Those of a model stay when it is unloaded, as in Triton, unless others have been set for many models since.
    """

    def __init__(self, state: CurrentState) -> None:
        self._state = state

    async def change(self, rows: Mapping[str, Any]) -> None:
        """Set rows (None: remove them); may be done again."""
        await self._state.until(lambda desired: desired)  # whoever makes the first one needs the lock for it
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            kept = {key: value for key, value in desired.client_settings.items() if key not in rows}
            changed = {key: value for key, value in (kept | dict(rows)).items() if value is not None}
            changed = _bounded(changed, desired.snapshot.models)
            if changed != desired.client_settings:
                await self._state.change(replace(desired, client_settings=changed))

    async def restore(self, rows: Mapping[str, Any]) -> None:
        """Take from an ingress what clients had set of a controller whose state could not be gone on with."""
        await self._state.until(lambda desired: desired)
        if not self._state.inherited:
            await self.change({**rows, **(await self._state.until(lambda desired: desired)).client_settings})


def _bounded(rows: dict[str, Any], loaded: Collection[str]) -> dict[str, Any]:
    """Return rows, of models that are not loaded those that were changed last."""
    models = dict.fromkeys(_model_of(key) for key in reversed(rows))
    dropped = set(islice((model for model in models if model and model not in loaded), MAX_UNLOADED, None))
    return {key: value for key, value in rows.items() if _model_of(key) not in dropped}


def _model_of(key: str) -> str:
    """Return whose setting it is, "" for the server's."""
    return ":".join(key.split(":")[2:])
