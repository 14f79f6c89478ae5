"""`eagleray validate` and `eagleray plan`: what can be said of a repository without starting anything."""

import json
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from deployments.backends.python.auto_complete import complete
from repository_loader.plan import ClusterResources, Plan, PlanSettings, make_plan
from repository_loader.repository import LoaderOptions, Snapshot, load_repositories

OK = 0
FAULTY = 2


def read_repositories(
    paths: Sequence[str], disable_auto_complete: bool, gpu_count: int = 0, gpu_memory_bytes: int = 0
) -> Snapshot:
    """Read, complete and check repositories."""
    options = LoaderOptions(
        disable_auto_complete_config=disable_auto_complete, gpu_count=gpu_count, gpu_memory_bytes=gpu_memory_bytes
    )
    return load_repositories([os.path.abspath(path) for path in paths], options, complete)


def print_findings(snapshot: Snapshot, as_json: bool) -> int:
    """Print every finding, then a line for each model; returns the exit code."""
    findings = [*snapshot.findings, *(f for model in snapshot.models.values() for f in model.findings)]
    failed = {name: model.failure for name, model in snapshot.models.items() if model.failure}
    faulty = bool(failed) or any(finding.severity == "error" for finding in findings)
    if as_json:
        document = {
            "findings": [
                {
                    "severity": f.severity,
                    "path": f.path,
                    "line": f.line,
                    "column": f.column,
                    "message": f.message,
                }
                for f in findings
            ],
            "models": {
                name: {"versions": [package.version for package in model.packages], "failure": model.failure or ""}
                for name, model in sorted(snapshot.models.items())
            },
        }
        json.dump(document, sys.stdout, indent=2)
        print()
        return FAULTY if faulty else OK
    for finding in findings:
        print(finding)
    for name, model in sorted(snapshot.models.items()):
        versions = ", ".join(str(package.version) for package in model.packages)
        print(f"{name}: {'FAULTY: ' + model.failure if model.failure else 'ok, versions ' + versions}")
    return FAULTY if faulty else OK


def print_plan(
    snapshot: Snapshot,
    settings: PlanSettings,
    resources: ClusterResources,
    as_json: bool,
) -> int:
    """Print the deployments; returns the exit code."""
    plan = make_plan(snapshot, settings, resources)
    unplaced = {name: model.failure for name, model in snapshot.models.items() if model.failure} | plan.unplaced
    if as_json:
        json.dump({**plan.to_dict(), "unplaced": unplaced}, sys.stdout, indent=2)
        print()
    else:
        _print_table(plan)
        for name, reason in sorted(unplaced.items()):
            print(f"not placed: {name}: {reason}")
    return FAULTY if unplaced else OK


def _print_table(plan: Plan) -> None:
    table = Table("application", "deployment", "placement", "models", "replicas", "instances", "CPUs", "GPUs", "memory")
    for deployment in plan.deployments:
        models = ", ".join(f"{model.name} {model.version}" for model in deployment.models)
        instances = sum(len(model.specs) for model in deployment.models)
        table.add_row(
            deployment.app_name,
            deployment.name,
            deployment.placement,
            models,
            str(deployment.replica_count),
            str(instances),
            f"{deployment.num_cpus:g}",
            f"{deployment.num_gpus:g}",
            f"{deployment.memory_bytes / 2**20:.0f} MiB",
        )
    for model in plan.embedded:
        row = ("eagleray", "Ingress", "embedded", f"{model.name} {model.version}", "-", str(len(model.specs)))
        table.add_row(*row, "-", "-", f"{model.file_bytes / 2**20:.0f} MiB")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
