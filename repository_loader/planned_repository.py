"""From repositories and a cluster's facts to a plan: the one way that both `eagleray serve` and `eagleray plan` go."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from repository_loader.cluster_facts import ClusterFacts
from repository_loader.completion import ModelCompleter
from repository_loader.deployment_plan import Plan, PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions, Override, Snapshot


def read_and_plan(
    repositories: Sequence[str],
    options: LoaderOptions,
    settings: PlanSettings,
    facts: ClusterFacts,
    complete_model: ModelCompleter | None,
    only: Collection[str] | None = None,
    overrides: Mapping[str, Override] | None = None,
) -> tuple[Snapshot, Plan]:
    """Read repositories for a cluster and place what loads there.

    `only` and `overrides` are as of `load_repositories`.

    Raises:
        RepositoryError: a path is no folder that can be listed.
    """
    options = replace(options, gpu_count=facts.num_gpus)
    snapshot = load_repositories(repositories, options, complete_model, only, overrides)
    return snapshot, make_plan(snapshot, settings, facts)
