"""Log and trace settings that clients have changed, for all ingresses: what becomes of the desired state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deployments.control.current_state import CurrentState


class ClientSettings:
    """Changes them; each row is plain data by a key of the ingresses' own."""

    def __init__(self, state: CurrentState) -> None:
        self._state = state

    async def change(self, rows: Mapping[str, Any]) -> None:
        """Set rows (None: remove them); may be done again."""
        await self._state.until(lambda desired: desired)  # whoever makes the first one needs the lock for it
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            changed = {**desired.client_settings, **rows}
            changed = {key: value for key, value in changed.items() if value is not None}
            if changed != desired.client_settings:
                await self._state.change(replace(desired, client_settings=changed))

    async def restore(self, rows: Mapping[str, Any]) -> None:
        """Take from an ingress what clients had set of a controller whose state could not be gone on with."""
        await self._state.until(lambda desired: desired)
        if not self._state.inherited:
            await self.change({**rows, **(await self._state.until(lambda desired: desired)).client_settings})
