"""Versions that do not run any more, or could not be loaded, with the reason, by model."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from deployments.control.directory import RENAMED, UNLOADED
from protocol.short_error import short_text
from repository_loader.namespaces import identifiers, shared_name
from repository_loader.snapshot import RepositoryModel

MAX_GONE: Final = 10_000
"""Of how many models this is known: clients may load models by ever new names."""

Gone = Mapping[str, Mapping[int, str]]


def latest_gone(gone: Gone) -> Gone:
    """Forget the models of which this was noted first, where there are too many."""
    return dict(islice(gone.items(), max(0, len(gone) - MAX_GONE), None))


def with_renamed(gone: Gone, loaded: Iterable[str]) -> dict[str, Mapping[int, str]]:
    """Note what is left under former names of models that are loaded.

    A name is known as it is or by identifiers, and never as both.
    """
    noted = dict(gone)
    for name in loaded:
        plain = shared_name(name)
        for other in [plain] if plain else identifiers(name, gone):
            if other in gone:
                noted[other] = dict.fromkeys(gone[other], RENAMED)
    return noted


def left_out(old: RepositoryModel | None, new: RepositoryModel) -> dict[int, str]:
    """Return the versions that ran and do not any more: the policy leaves them out, or the model cannot be read."""
    kept = {package.version for package in new.packages}
    before = {package.version for package in old.packages} if old is not None else set[int]()
    return dict.fromkeys(before - kept, UNLOADED if new.packages else short_text(new.failure or UNLOADED))


def not_loaded(
    tried: RepositoryModel | None, serves: RepositoryModel | None, reasons: Mapping[int, str]
) -> dict[int, str]:
    """Return which versions do not run as a model that was tried failed to load, for the reasons given.

    Where another state of the model `serves` on, these are the versions which that does not have, and which failed.
    """
    versions = {package.version for package in (() if tried is None else tried.packages)}
    if serves is None:
        why = dict.fromkeys(versions, UNLOADED) | dict(reasons)
    else:
        versions -= {package.version for package in serves.packages}
        why = {version: reason for version, reason in reasons.items() if version in versions}
    return {version: short_text(reason) for version, reason in why.items()}


def with_not_read(gone: Gone, found: RepositoryModel, serves: RepositoryModel) -> dict[str, Mapping[int, str]]:
    """Note which version of a model that `serves` on was `found` to be one that cannot be read."""
    noted = {version: reason for version, reason in gone.get(found.name, {}).items() if reason == UNLOADED}
    if found.failed_version is not None and serves.package(found.failed_version) is None:
        noted[found.failed_version] = short_text(found.failure or "")
    others = {name: reasons for name, reasons in gone.items() if name != found.name}
    return {**others, found.name: noted} if noted else others
