"""Who may load and unload models while the server runs, in Triton's words for each control mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protocol.errors import InvalidArgument, Unavailable, Unsupported
from repository_loader.config_json import ConfigJsonError, check_size


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

    async def register_repository(self, repository: str, names: Mapping[str, str]) -> None:
        """Have the models of one more repository be there to be loaded; `names` are others for those of folders."""
        ...

    async def unregister_repository(self, repository: str) -> None:
        """Have a repository's models be there no more; what is loaded of them stays loaded."""
        ...

    async def registered_repositories(self) -> Mapping[str, Mapping[str, str]]:
        """Return the repositories by path or address, each with the names given to models by their folders."""
        ...

    async def list_models(self) -> None:
        """Have the index name the models that are in the repositories now."""
        ...


def check_repository_name(name: str) -> None:
    """Refuse to load from, or to unload of, one repository by its name, as Triton does.

    Raises:
        Unsupported: a name is given.
    """
    if name:
        raise Unsupported("'repository_name' specification is not supported")


class NoModelControl:
    """Modes in which clients have no say in it."""

    async def load(self, request: LoadRequest) -> None:
        """Refuse."""
        self._refuse()

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Refuse."""
        self._refuse()

    async def register_repository(self, repository: str, names: Mapping[str, str]) -> None:
        """Refuse."""
        raise Unsupported("repository registration is not allowed if model control mode is not EXPLICIT")

    async def unregister_repository(self, repository: str) -> None:
        """Refuse."""
        raise Unsupported("repository unregistration is not allowed if model control mode is not EXPLICIT")

    async def registered_repositories(self) -> Mapping[str, Mapping[str, str]]:
        """Refuse."""
        raise Unsupported("repositories are not registered if model control mode is not EXPLICIT")

    async def list_models(self) -> None:
        """Do nothing: what there is has been loaded, or will be once the controller has looked."""

    def _refuse(self) -> None:
        raise Unavailable("explicit model load / unload is not allowed if polling is enabled")


class ExplicitControl:
    """Checks what clients ask for before anybody acts on it."""

    def __init__(self, control: ModelControl) -> None:
        self._control = control

    async def load(self, request: LoadRequest) -> None:
        """Load a model.

        Raises:
            InvalidArgument: no model can have this name, or its configuration is too large.
        """
        check_model_name(request.name)
        if request.config is not None:
            try:
                check_size(request.config)
            except ConfigJsonError as error:
                raise InvalidArgument(f"failed to load '{request.name}', Invalid config override: {error}") from None
        await self._control.load(request)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; raises as `load`."""
        check_model_name(name)
        await self._control.unload(name, unload_dependents)

    async def register_repository(self, repository: str, names: Mapping[str, str]) -> None:
        """Register a repository by its absolute path or its address; raises as `load`, also for other paths."""
        for name in (*names, *names.values()):
            check_model_name(name)
        _check_repository(repository)
        await self._control.register_repository(repository, names)

    async def unregister_repository(self, repository: str) -> None:
        """Unregister a repository; raises as `register_repository`."""
        _check_repository(repository)
        await self._control.unregister_repository(repository)

    async def registered_repositories(self) -> Mapping[str, Mapping[str, str]]:
        """Return the repositories."""
        return await self._control.registered_repositories()

    async def list_models(self) -> None:
        """Have the index name the models that are in the repositories now."""
        await self._control.list_models()


def _check_repository(repository: str) -> None:
    if "\0" in repository or not (repository.startswith("/") or "://" in repository):
        raise InvalidArgument("a repository must be an absolute path, or an address such as s3://<bucket>/<path>")


def check_model_name(name: str) -> None:
    """Raise `InvalidArgument` unless a name may be that of a model in a repository."""
    if not name.strip():
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        raise InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")
