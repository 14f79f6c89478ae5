"""The models as this ingress sees them: what the controller's directory says, and which versions it can reach."""

import asyncio
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.directory import LOADING, NO_REPLICA, READY, RENAMED, Directory, ModelEntry, VersionEntry
from deployments.lane.fleet import Fleet
from deployments.lane.sink import Target, VersionTarget
from deployments.replica.model_host import ModelHost
from protocol.errors import InvalidArgument, Unavailable
from repository_loader.namespaces import ambiguous, identifiers, shared_name


class Models:
    """The directory, beside the models that this process hosts and those that its lanes lead to.

    With `namespacing`, models that share a name are known by identifiers.
    """

    def __init__(self, host: ModelHost, fleet: Fleet, *, namespacing: bool = False) -> None:
        self._host = host
        self._fleet = fleet
        self._namespacing = namespacing
        self.directory = Directory()
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Wake whoever waits for a change of the directory, or of what can be reached."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_followed(self, epoch: str, generation: int) -> None:
        """Wait until the directory is that of the epoch and at least of the generation, for as long as it takes."""
        while self.directory.epoch != epoch or self.directory.generation < generation:
            await self._changed.wait()

    async def until_not_behind(self, epoch: str, generation: int) -> None:
        """Wait until the directory is of at least the generation, or of another epoch, which may be a later one."""
        while self.directory.epoch == epoch and self.directory.generation < generation:
            await self._changed.wait()

    async def until_ready(self, name: str) -> None:
        """Wait until every version of a model, or of all that share its name, can be asked that takes requests.

        None is waited for that this process was to host, and could not load.
        """
        while not all(self._all_ready(each) for each in (name, *self.sharing(name))):
            await self._changed.wait()

    async def until_settled(self) -> None:
        """Wait until every model has been tried and can be reached, for as long as it takes."""
        while not self.settled():
            await self._changed.wait()

    def settled(self) -> bool:
        """Whether every model has been tried, and every one that loaded can be reached from here."""
        return self.directory.settled and self.reached()

    def reached(self) -> bool:
        """Whether it is known here which models there are, and every one that has loaded can be reached.

        What this process hosts itself it has loaded, or failed to.
        """
        return self.directory.known and all(
            state.held or self._can_be_reached(name, number, state) for name, number, state in self._versions()
        )

    def _can_be_reached(self, name: str, number: int, state: VersionEntry) -> bool:
        if self.loads_here(name, number):
            return False
        return state.state != READY or self.version_ready(name, number, state) or self._failed_here(name, number)

    def are_as_told(self) -> bool:
        """Whether the controller says LOADING of nothing that can be reached, as one may that has just begun."""
        return not any(
            state.state == LOADING and not state.held and self.version_ready(name, number, state)
            for name, number, state in self._versions()
        )

    def _versions(self) -> Iterator[tuple[str, int, VersionEntry]]:
        for name, entry in self.directory.models.items():
            for number, state in entry.versions.items():
                yield name, number, state

    def _all_ready(self, name: str) -> bool:
        entry = self.directory.models.get(name)
        versions = {} if entry is None else entry.versions
        return all(
            self.version_ready(name, number, state) or self._failed_here(name, number)
            for number, state in versions.items()
            if state.taken
        )

    def is_embedded(self, name: str) -> bool:
        """Whether ingresses host a version of a model themselves."""
        entry = self.directory.models.get(name)
        return entry is not None and any(f"{name}/{number}" in self.directory.embedded for number in entry.versions)

    def _failed_here(self, name: str, version: int) -> bool:
        row = self.directory.embedded.get(f"{name}/{version}")
        return row is not None and self._host.failed(name, version, row["digest"])

    def loads_here(self, name: str, version: int) -> bool:
        """Whether this process is to host a version, and has neither loaded it nor failed to."""
        hosts = f"{name}/{version}" in self.directory.embedded
        return hosts and self._host.target(name, version) is None and not self._failed_here(name, version)

    def require_known(self) -> None:
        """Raise Unavailable, with Triton's text and the reason if there is one, while nothing is known of any model."""
        if not self.directory.known:
            unread = self.directory.unread
            raise Unavailable(f"Server not ready: {unread}" if unread else "Server not ready")

    def sharing(self, name: str) -> list[str]:
        """Return the identifiers of the models that have been loaded, or tried, and share a name."""
        if not self._namespacing:
            return []
        models = self.directory.models
        return [each for each in identifiers(name, models) if _was_tried(models[each])]

    def ambiguity(self, name: str) -> InvalidArgument | None:
        """Return the refusal of a name that several models share, and none has alone; None for any other."""
        entry = self.directory.models.get(name)
        alone = entry is not None and not all(state.left for state in entry.versions.values())
        sharing = () if alone else self.sharing(name)
        return InvalidArgument(ambiguous(name, len(sharing))) if sharing else None

    def plain_name(self, known: str) -> str:
        """Return the name that a model has in its repository."""
        return (self._namespacing and shared_name(known)) or known

    def config(self, name: str, version: int = -1) -> ModelConfig | None:
        """Return a model's completed configuration, or that of one version; None for an unknown model, or without."""
        entry = self.directory.models.get(name)
        return None if entry is None else entry.config_of(version)

    def find(self, name: str, version: int) -> VersionTarget | None:
        """Return the target of one version; None when neither this process nor a lane has it."""
        here = self._host.target(name, version)
        if here is None or ((name, version) in self._host.copies and not self._is_copy(name, version)):
            return self._fleet.target(name, version)
        return here

    def _is_copy(self, name: str, version: int) -> bool:
        """Whether what this process hosts beside its replicas is what these serve, or are about to."""
        row = self.directory.copies.get(f"{name}/{version}")
        return row is not None and self._host.copies_now(name, version, row["digest"])

    def awaited(self, name: str, version: int) -> Target | None:
        """Return the target of a version whose last replica died, while requests wait for the next one."""
        return self._fleet.awaited(name, version)

    def version_ready(self, name: str, version: int, entry: VersionEntry) -> bool:
        """Whether a version can be asked from here."""
        # What a replica failed to load, or an ensemble whose step failed, may have a lane all the same.
        if not entry.taken:
            return False
        target = self.find(name, version)
        return target is not None and target.ready

    def says_ready(self, name: str, version: int) -> bool:
        """Whether a version that can be asked says of itself that it is ready; most say nothing.

        One that may have no replica, and whose first one loads it or does not start, can be asked and is not ready.
        """
        if self._has_yet_to_start(name, version):
            return False
        return self._host.says_ready(name, version) and self._fleet.says_ready(name, version)

    def _has_yet_to_start(self, name: str, version: int) -> bool:
        entry = self.directory.models.get(name)
        state = None if entry is None else entry.versions.get(version)
        if state is None or not (state.replacing or state.state == LOADING):
            return False
        target = self._fleet.target(name, version)
        return target is not None and target.ready and not target.choice.lanes

    def fault(self, name: str, version: int) -> str:
        """Return why a version that had been loaded cannot be asked from here."""
        fault = self._host.fault(name, version) or self._fleet.fault(name, version)
        return fault or self._host.failure(name, version) or NO_REPLICA

    def refusal(self, name: str) -> str:
        """Return why replicas of a model accept nothing from here, as those of another version; "" else."""
        groups = (group for group, models in self.directory.hosted.items() if name in models)
        return next(filter(None, map(self._fleet.refusal, groups)), "")

    def ready_versions(self, name: str) -> list[int]:
        """Return the versions of a model that can be asked from here, in order; none for an unknown model."""
        entry = self.directory.models.get(name)
        if entry is None:
            return []
        return sorted(number for number, state in entry.versions.items() if self.version_ready(name, number, state))


def _was_tried(entry: ModelEntry) -> bool:
    """Whether a model has been loaded, or tried, under this name and has no other one since."""
    return bool(entry.reason) or any(state.reason != RENAMED for state in entry.versions.values())
