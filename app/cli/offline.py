"""`eagleray validate` and `eagleray plan`: what can be said of a repository without starting anything."""

import json
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from deployments.backends.python.auto_complete import complete
from repository_loader.plan import ClusterFacts, Plan, PlanSettings
from repository_loader.planned_repository import read_and_plan
from repository_loader.repository import LoaderOptions, Snapshot, load_repositories

OK = 0
FAULTY = 2


def read_repositories(paths: Sequence[str], disable_auto_complete: bool) -> Snapshot:
    """Read, complete and check repositories."""
    options = LoaderOptions(disable_auto_complete_config=disable_auto_complete)
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


def print_plan(paths: Sequence[str], settings: PlanSettings, facts: ClusterFacts, as_json: bool) -> int:
    """Print the deployments that repositories become on such a cluster; returns the exit code."""
    repositories = [os.path.abspath(path) for path in paths]
    snapshot, plan = read_and_plan(repositories, LoaderOptions(), settings, facts, complete)
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
    """Print a row for each model, and a deployment's resources with the first of its models."""
    columns = ("application", "deployment", "placement", "model", "why", "replicas", "instances", "CPUs", "device")
    table = Table(*columns, "memory")
    for deployment in plan.deployments:
        resources = (str(deployment.replica_count), f"{deployment.num_cpus:g}", deployment.device)
        for model in deployment.models:
            replicas, cpus, device = resources
            table.add_row(
                deployment.app_name,
                deployment.name,
                deployment.placement,
                f"{model.name} {model.version}",
                model.why,
                replicas,
                str(len(model.specs)),
                cpus,
                device,
                f"{deployment.memory_bytes / 2**20:.0f} MiB" if device else "",
            )
            resources = ("", "", "")
    for model in plan.embedded:
        row = (
            "eagleray",
            "Ingress",
            "embedded",
            f"{model.name} {model.version}",
            model.why,
            "-",
            str(len(model.specs)),
        )
        table.add_row(*row, "-", "-", f"{model.file_bytes / 2**20:.0f} MiB")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
