"""The desired state that a controller begins with where it goes on with no other's."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from deployments.control.client_wishes import ClientWishes
from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState, Origin, log_findings, not_polled
from deployments.control.node_completion import NodeCompleter
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.planned_repository import read_and_plan
from repository_loader.repository import RepositoryError, find_models, normalised
from repository_loader.snapshot import LoaderOptions, Override

logger = logging.getLogger(__name__)

NO_WISHES: Final = ClientWishes()


def read_desired_state(
    options: ControllerOptions,
    facts: ClusterFacts,
    wishes: ClientWishes = NO_WISHES,
    here: Callable[[str], str] = str,
) -> DesiredState:
    """Read the repositories for such a cluster, log what there is to say about them, and plan; blocks.

    What clients have loaded, unloaded and registered counts in explicit mode, unless this deployment says otherwise.
    `here` is as of `overrides`.
    """
    asked = options.models_at_start()
    if asked is None:
        wishes = ClientWishes(traffic=wishes.traffic)
    else:
        wishes = _as_deployed(options, wishes, asked)
        asked = sorted({*wishes.loaded, *asked} - set(wishes.unloaded))
    repositories = _repositories(options, wishes)
    origins = {name: Origin(True, _found(each, here)) for name, each in wishes.loaded.items()}
    loader = replace(options.loader, names=repositories)
    given = {name: origin.override for name, origin in origins.items() if origin.override is not None}
    snapshot, plan = read_and_plan(tuple(repositories), loader, options.plan, facts, NodeCompleter(facts), asked, given)
    for finding in snapshot.findings:
        logger.warning("%s", finding)
    missing = {} if asked is None else {name: {1: not_polled(name)} for name in asked if name not in snapshot.models}
    for name, reasons in missing.items():
        logger.error("failed to load '%s': %s", name, reasons[1])
    log_findings(snapshot, plan, snapshot.models)
    all_origins = {name: origins.get(name, Origin(asked is None or name in asked)) for name in snapshot.models}
    traffic = {name: each for name, each in wishes.traffic.items() if name in snapshot.models}
    return DesiredState(snapshot, plan, facts, all_origins, missing, given_traffic=traffic, repositories=repositories)


def _as_deployed(options: ControllerOptions, wishes: ClientWishes, asked: Collection[str]) -> ClientWishes:
    """Return what is left of them where a deployment names models to load that the one before did not, or no longer.

    That was said later. What a client has sent of its own is for it to unload.
    """
    before, now = wishes.asked, options.load_models
    if before is None or set(before) == set(now):
        return wishes
    new = options.models_called([name for name in now if name not in before])
    old = {*options.models_called([name for name in before if name not in now])} - {*asked}
    loaded = {name: override for name, override in wishes.loaded.items() if override is not None or name not in old}
    return replace(wishes, loaded=loaded, unloaded={*wishes.unloaded} - {*new})


def _found(override: Override | None, here: Callable[[str], str]) -> Override | None:
    """Return an override with its files on this node; where they cannot be had, its model does not load."""
    if override is None or not override.model_path:
        return override
    try:
        return replace(override, model_path=here(override.model_path))
    except Exception as error:
        logger.warning("what a client has sent for '%s' cannot be had: %s", override.config.name, error)
        return override


def _repositories(options: ControllerOptions, wishes: ClientWishes) -> dict[str, Mapping[str, str]]:
    """Return the repositories, with the names that were given in them; what clients have registered, if it is there."""
    paths = [normalised(path) for path in options.repositories]
    paths += [path for path in wishes.registered if _can_be_read(path, options.loader)]
    return {path: wishes.repositories.get(path, {}) for path in paths}


def _can_be_read(path: str, loader: LoaderOptions) -> bool:
    try:
        find_models([path], replace(loader, names={}))
    except (RepositoryError, ValueError) as error:
        logger.warning("the repository '%s' is registered no longer: %s", path, error)
        return False
    return True
