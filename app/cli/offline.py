"""`eagleray plan`: what repositories become, said without starting anything."""

import json
import sys
from collections.abc import Iterator

from app.cli.no_model import NO_MODEL, absent
from app.cli.printable import printable_lines
from app.settings import Settings
from deployments.backends.auto_complete import complete
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import ModelPlan, Plan
from repository_loader.planned_repository import read_and_plan

OK = 0
FAULTY = 2


def print_plan(settings: Settings, facts: ClusterFacts, as_json: bool) -> int:
    """Print the deployments that repositories become on such a cluster; returns the exit code."""
    chosen = settings.chosen_models()
    snapshot, plan = read_and_plan(
        settings.model_repository,
        settings.loader_options(),
        settings.plan_settings(),
        facts,
        complete,
        chosen,
    )
    failed = {name: model.failure for name, model in snapshot.models.items() if model.failure}
    unplaced = absent(chosen or (), snapshot) | failed | plan.unplaced
    if as_json:
        json.dump({**plan.to_dict(), "unplaced": unplaced}, sys.stdout, indent=2)
        print()
    else:
        lines = [*_lines(plan), *(f"not placed: {name}: {reason}" for name, reason in sorted(unplaced.items()))]
        for line in lines or [NO_MODEL]:
            print(printable_lines(line))
    return FAULTY if unplaced else OK


def _lines(plan: Plan) -> Iterator[str]:
    """Return a line on each deployment and its resources, and below it one on each of its models."""
    for each in plan.deployments:
        resources = f"CPUs {each.num_cpus:g}, device {each.device}, memory {_mebibytes(each.memory_bytes)}"
        yield f"{each.app_name} {each.name}: placement {each.placement}, replicas {each.replica_count}, {resources}"
        yield from map(_model_line, each.models)
    if plan.embedded:
        file_bytes = sum(each.file_bytes for each in plan.embedded)
        yield f"eagleray Ingress: placement embedded, files {_mebibytes(file_bytes)}"
        yield from map(_model_line, plan.embedded)


def _model_line(model: ModelPlan) -> str:
    return f"  {model.name} {model.version}: instances {len(model.specs)}; {model.why}"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
