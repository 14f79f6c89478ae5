"""Who may load and unload models while the server runs, in Triton's words for each control mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protocol.errors import InvalidArgument, Unavailable


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A model to load.

    `config` is JSON that takes the place of its config.pbtxt, `files` (by `file:<path>`) that of its files.
    """

    name: str
    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class ModelControl(Protocol):
    """Loads and unloads models on a client's wish."""

    async def load(self, request: LoadRequest) -> None:
        """Load a model, or load it again; returns when it is ready."""
        ...

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; an unknown one is no error."""
        ...

    async def list_models(self) -> None:
        """Have the index name the models that are in the repositories now."""
        ...


class NoModelControl:
    """Modes in which clients have no say in it."""

    async def load(self, request: LoadRequest) -> None:
        """Refuse."""
        self._refuse()

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Refuse."""
        self._refuse()

    async def list_models(self) -> None:
        """Do nothing: what is not loaded is not shown."""

    def _refuse(self) -> None:
        raise Unavailable("explicit model load / unload is not allowed if polling is enabled")


class ExplicitControl:
    """Checks what clients ask for before anybody acts on it."""

    def __init__(self, control: ModelControl) -> None:
        self._control = control

    async def load(self, request: LoadRequest) -> None:
        """Load a model.

        Raises:
            InvalidArgument: no model can have this name.
        """
        check_model_name(request.name)
        await self._control.load(request)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; raises as `load`."""
        check_model_name(name)
        await self._control.unload(name, unload_dependents)

    async def list_models(self) -> None:
        """Have the index name the models that are in the repositories now."""
        await self._control.list_models()


def check_model_name(name: str) -> None:
    """Raise `InvalidArgument` unless a name may be that of a model in a repository."""
    if not name.strip():
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or "\0" in name or ".." in name.split("/") or name in (".", ".."):
        raise InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")
