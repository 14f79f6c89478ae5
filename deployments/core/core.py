"""The core: the model versions of this process, found by name and version."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from deployments.core.clock import Clock
from deployments.core.model_version import ModelVersion
from deployments.core.traced_request import follow
from deployments.core.version_choice import expected
from deployments.schedulers.scheduler import reply
from protocol.errors import NotFound, ServingError, Unavailable
from protocol.infer import InferRequest

LATEST = -1


@dataclass(slots=True)
class _Model:
    """The versions of a model: those that are ready, and the numbers of all that there have been.

    `former` are those in whose place versions of another interface are ready.
    """

    name: str
    ready: dict[int, ModelVersion] = field(default_factory=dict)
    latest: ModelVersion | None = None
    former: dict[int, ModelVersion] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)


class Core:
    """Holds model versions and gives them requests; it is the router of its own ensembles.

    Everything here belongs to the event loop's thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self._taken: Collection[tuple[str, int]] = ()

    def expect(self, taken: Collection[tuple[str, int]]) -> None:
        """Take which versions of all models take requests; the highest of these here is the latest."""
        self._taken = taken
        for model in self._models.values():
            self._update(model)

    def add(self, model_version: ModelVersion) -> ModelVersion | None:
        """Serve a loaded version from now on; returns the one it takes the place of, which the caller closes.

        One of another interface is asked until then by those that are made for it, see `forget_former`.
        """
        model = self._model(model_version.name)
        replaced = model.ready.get(model_version.version)
        if replaced is not None and replaced.interface != model_version.interface:
            model.former[model_version.version] = replaced
        model.ready[model_version.version] = model_version
        model.numbers.add(model_version.version)
        self._update(model)
        return replaced

    def remove(self, name: str, version: int) -> ModelVersion:
        """Serve a version no longer, and return it for the caller to close.

        Raises:
            NotFound: there is no such version.
        """
        model = self._models.get(name, _NONE)
        removed = model.ready.pop(version, None)
        if removed is None:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        self._update(model)
        return removed

    def forget_former(self, former: ModelVersion) -> None:
        """Give a version that was replaced nothing more."""
        model = self._models.get(former.name, _NONE)
        if model.former.get(former.version) is former:
            del model.former[former.version]

    def note_failed(self, name: str, version: int) -> None:
        """Note that there is a version, which could not be loaded."""
        self._model(name).numbers.add(version)

    def has(self, name: str) -> bool:
        """Whether a version of the model is ready here."""
        model = self._models.get(name)
        return model is not None and model.latest is not None

    def serves(self, name: str, version: int, interface: str) -> bool:
        """Whether a version (-1: the latest) can be asked here by an interface."""
        return self._find(self._models.get(name, _NONE), version, interface) is not None

    def interfaces(self, name: str, version: int) -> set[str]:
        """Return the interface that a version (-1: the latest) has here; none where it is not ready."""
        found = self._find(self._models.get(name, _NONE), version, "")
        return set() if found is None else {found.interface}

    def instance_count(self, name: str) -> int:
        """Return the least number of instances that a ready version of the model has; an ensemble has 0."""
        pools = [version.pool for version in self._models.get(name, _NONE).ready.values()]
        return min([0 if pool is None else pool.instance_count for pool in pools], default=0)

    def holds(self, name: str, version: int, sequence_id: int | str) -> bool:
        """Whether a version here has a sequence of this id that is not over."""
        found = self._models.get(name, _NONE).ready.get(version)
        return found is not None and found.holds(sequence_id)

    def end_sequence(self, name: str, version: int, sequence_id: int | str) -> None:
        """End a sequence that a version here may have, and that has started anew in another version."""
        found = self._models.get(name, _NONE).ready.get(version)
        if found is not None:
            found.end_sequence(sequence_id)

    def versions(self, name: str) -> Collection[int]:
        """Return the versions of a model that are ready here."""
        return self._models.get(name, _NONE).ready.keys()

    def resolve(self, name: str, version: int = LATEST, interface: str = "") -> ModelVersion:
        """Return a ready version; for `LATEST` the highest that takes requests, or the highest where none is known to.

        Raises:
            NotFound: the model or version does not exist here, or the model has no version that is ready.
            Unavailable: the version exists and is not ready, or not for this interface.
        """
        model = self._models.get(name)
        if model is not None:
            found = self._find(model, version, interface)
            if found is not None:
                return found
        raise _unresolved(name, version, model)

    @staticmethod
    def _find(model: _Model, version: int, interface: str) -> ModelVersion | None:
        found = model.latest if version == LATEST else model.ready.get(version)
        if not interface or found is None or found.interface == interface:
            return found
        former = model.former.get(found.version)
        return former if former is not None and former.interface == interface else None

    def infer(self, model_name: str, version: int, request: InferRequest, interface: str = "") -> None:
        """Give the request to a model; every outcome comes through its `reply`, never before this returns."""
        try:
            model_version = self.resolve(model_name, version, interface)
        except ServingError as error:
            self._clock.call_soon(partial(reply, request, error))
        else:
            request.context = model_version
            if request.trace is not None:
                follow(request, request.trace, model_version, self._clock.now_ns)
            model_version.submit(request)

    def cancel(self, request: InferRequest) -> None:
        """Give up a request that `infer` was given; its reply still comes."""
        if isinstance(request.context, ModelVersion):
            request.context.cancel(request)

    def _model(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(name)
        return model

    def _update(self, model: _Model) -> None:
        model.latest = model.ready[max(expected(model.name, model.ready, self._taken))] if model.ready else None


_NONE = _Model("")


def _unresolved(name: str, version: int, model: _Model | None) -> ServingError:
    what = f"Request for unknown model: '{name}'"
    if model is None:
        return NotFound(f"{what} is not found")
    if version == LATEST:
        if model.latest is not None:  # for another interface
            return Unavailable(f"{what} is not at ready state")
        return NotFound(f"{what} has no available versions")
    if version not in model.numbers:
        return NotFound(f"{what} version {version} is not found")
    return Unavailable(f"{what} version {version} is not at ready state")
