"""Models that run as before the last deployment, since they cannot run as that has them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from repository_loader.ensemble_graph import steps_of
from repository_loader.snapshot import RepositoryModel


@dataclass(frozen=True, slots=True)
class Postponed:
    """Models that change together, as ensembles link them, and do not yet: what ran before serves on.

    `models` are they as the last deployment has them, by name, `reasons` say why each does not run so. `steps` are of
    ensembles among them, and run for no other reason.
    """

    models: Mapping[str, RepositoryModel]
    reasons: Mapping[str, str]
    steps: frozenset[str] = frozenset()

    @property
    def can_be_read(self) -> bool:
        """Whether all that lacks is a place."""
        return not any(model.failure for model in self.models.values())

    def without(self, names: Collection[str]) -> "Postponed":
        """Return what is left when some of the models have been loaded or unloaded."""
        models = {name: model for name, model in self.models.items() if name not in names}
        return replace(self, models=models, reasons={name: self.reasons[name] for name in models})


def reasons_of(postponed: Iterable[Postponed]) -> dict[str, str]:
    """Return why each model does not run as it was deployed last."""
    return {name: reason for group in postponed for name, reason in group.reasons.items()}


def parted(
    postponed: Iterable[Postponed], changed: Collection[str]
) -> tuple[tuple[Postponed, ...], tuple[Postponed, ...]]:
    """Return what is left when some models have `changed`, and the groups, as they were, that had any of those."""
    postponed = tuple(postponed)
    ended = tuple(group for group in postponed if not group.models.keys().isdisjoint(changed))
    left = (group.without(changed) if group in ended else group for group in postponed)
    return tuple(group for group in left if group.models), ended


def joined(
    postponed: Iterable[Postponed], undone: Iterable[Postponed], names: Collection[str]
) -> tuple[Postponed, ...]:
    """Return what is postponed once changes are `undone` that parted groups; of those models, `names` are as before."""
    postponed = tuple(postponed)
    known = {*names, *reasons_of(postponed)}
    again = [group.without(group.models.keys() - known) for group in undone]
    left = (group for group in postponed if not any(group.models.keys() <= each.models.keys() for each in again))
    return (*left, *again)


def waiting_ensembles(
    models: Mapping[str, RepositoryModel], postponed: Collection[str], runs: Collection[str]
) -> dict[str, RepositoryModel]:
    """Return the ensembles that wait for a step that is `postponed`, as models that cannot be loaded.

    They were checked against the step as it was deployed last. Those that are among what `runs` already do not wait.
    """
    found: dict[str, RepositoryModel] = {}
    count = -1
    while len(found) > count:  # an ensemble may be a step of another
        count = len(found)
        for name, model in models.items():
            if name in found or name in runs or model.failure:
                continue
            step = next((step for step in steps_of(model) if step in postponed or step in found), "")
            if step:
                reason = f"ensemble '{name}' depends on '{step}', which does not run as it was deployed last"
                found[name] = replace(model, packages=(), failure=reason)
    return found
