"""`eagleray plan`: what repositories become, said without starting anything."""

import json
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.printable import printable, printable_lines
from app.settings import Settings
from deployments.backends.python.auto_complete import complete
from repository_loader.plan import ClusterFacts, Plan
from repository_loader.planned_repository import read_and_plan

OK = 0
FAULTY = 2


def print_plan(settings: Settings, facts: ClusterFacts, as_json: bool) -> int:
    """Print the deployments that repositories become on such a cluster; returns the exit code."""
    snapshot, plan = read_and_plan(
        settings.model_repository,
        settings.loader_options(),
        settings.plan_settings(),
        facts,
        complete,
        settings.chosen_models(),
    )
    unplaced = {name: model.failure for name, model in snapshot.models.items() if model.failure} | plan.unplaced
    if as_json:
        json.dump({**plan.to_dict(), "unplaced": unplaced}, sys.stdout, indent=2)
        print()
    else:
        _print_table(plan)
        for name, reason in sorted(unplaced.items()):
            print(printable_lines(f"not placed: {name}: {reason}"))
    return FAULTY if unplaced else OK


def _print_table(plan: Plan) -> None:
    """Print a row for each model, and a deployment's resources with the first of its models."""
    columns = ("application", "deployment", "placement", "model", "why", "replicas", "instances", "CPUs", "device")
    table = Table(*columns, "memory")
    for deployment in plan.deployments:
        resources = (str(deployment.replica_count), f"{deployment.num_cpus:g}", deployment.device)
        for model in deployment.models:
            replicas, cpus, device = resources
            table.add_row(
                *_cells(deployment.app_name, deployment.name, deployment.placement),
                *_cells(f"{model.name} {model.version}", model.why),
                replicas,
                str(len(model.specs)),
                cpus,
                device,
                f"{deployment.memory_bytes / 2**20:.0f} MiB" if device else "",
            )
            resources = ("", "", "")
    for model in plan.embedded:
        row = _cells("eagleray", "Ingress", "embedded", f"{model.name} {model.version}", model.why)
        table.add_row(*row, "-", str(len(model.specs)), "-", "-", f"{model.file_bytes / 2**20:.0f} MiB")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)


def _cells(*texts: str) -> list[Text]:
    """Return texts as they are: a name may hold what a table would take for a style."""
    return [Text(printable(text)) for text in texts]
