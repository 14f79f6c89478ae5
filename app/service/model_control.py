"""Who may load and unload models while the server runs, in Triton's words for each control mode."""

from typing import Any, Protocol

from protocol.errors import InvalidArgument, Unavailable, Unsupported


class ModelControl(Protocol):
    """Loads and unloads models on a client's wish."""

    async def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Load a model, or load it again; returns when it is ready."""
        ...

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; an unknown one is no error."""
        ...


class NoModelControl:
    """Modes in which clients have no say in it."""

    def __init__(self, explicit: bool = False) -> None:
        self._explicit = explicit

    async def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Refuse."""
        self._refuse(name)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Refuse."""
        self._refuse(name)

    def _refuse(self, name: str) -> None:
        if not self._explicit:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")
        check_model_name(name)
        raise Unsupported("loading and unloading models while the server runs is not supported yet")


def check_model_name(name: str) -> None:
    """Raise `InvalidArgument` unless a name may be that of a model in a repository."""
    if not name.strip():
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or "\0" in name or ".." in name.split("/") or name in (".", ".."):
        raise InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")
