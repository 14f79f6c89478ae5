"""`eagleray validate`: everything that would be refused, and everything that would have no effect, before serving."""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from app.cli.no_model import NO_MODEL, absent
from app.cli.printable import printable, printable_lines
from deployments.backends.auto_complete import complete
from deployments.free_memory import free_memory_bytes
from deployments.log.line_format import for_terminal
from deployments.replica.hosted_model import HostedModel, packages_by_name
from deployments.replica.trial_load import TrialLoad, try_load
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import ModelPlan, Plan, PlanSettings
from repository_loader.ensemble_graph import without_step
from repository_loader.findings import Finding
from repository_loader.planned_repository import read_and_plan
from repository_loader.snapshot import LoaderOptions, Snapshot

OK = 0
FAULTY = 2
PARALLEL_LOADS = 2
_OUTPUT_LINES = 30


@dataclass(slots=True)
class Validation:
    """What there is to say about repositories; `failures` are the models that would not be served, with reasons."""

    snapshot: Snapshot
    plan: Plan
    findings: list[Finding]
    failures: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, paths: Sequence[str], loader: LoaderOptions, settings: PlanSettings, facts: ClusterFacts
    ) -> "Validation":
        """Read repositories and plan them for a cluster; loads nothing."""
        snapshot, plan = read_and_plan(paths, loader, settings, facts, complete)
        findings = [*snapshot.findings, *(each for model in snapshot.models.values() for each in model.findings)]
        failures = {name: model.failure for name, model in snapshot.models.items() if model.failure}
        validation = cls(snapshot, plan, findings, failures)
        for name, reason in plan.unplaced.items():
            validation.fail(name, reason)
        return validation

    def expect(self, names: Sequence[str]) -> None:
        """Note of models that would be loaded at the start which of them no repository has."""
        self.failures |= absent(names, self.snapshot)

    def fail(self, name: str, reason: str) -> None:
        """Note that a model would not be served, unless that is known already."""
        if name not in self.failures:
            self.failures[name] = reason
            path = self.snapshot.models[name].config_path or self.snapshot.models[name].model_path
            self.findings.append(Finding("error", path, 1, 1, reason))

    def load(self) -> None:
        """Load every planned model once, `PARALLEL_LOADS` at a time, in a process of its own; ensembles come last."""
        planned = [*(model for each in self.plan.deployments for model in each.models), *self.plan.embedded]
        with ThreadPoolExecutor(PARALLEL_LOADS, "load") as threads:
            for ensembles in (False, True):
                chosen = [model for model in planned if bool(model.dependencies) == ensembles]
                for model, trial in zip(chosen, threads.map(self._try, chosen), strict=True):
                    if trial.reason:
                        self.fail(model.name, trial.reason)
                        self.outputs[f"{model.name} version {model.version}"] = trial.output
        self._fail_dependents(planned)

    def _try(self, model: ModelPlan) -> TrialLoad:
        if any(name in self.failures for name in model.dependencies):
            return TrialLoad("", "")  # `_fail_dependents` has the reason
        hosted = HostedModel.of(model, packages_by_name(self.plan))
        return try_load(hosted, free_memory_bytes() // PARALLEL_LOADS)

    def _fail_dependents(self, planned: Sequence[ModelPlan]) -> None:
        waiting = True
        while waiting:  # an ensemble that fails may be a step of another
            waiting = False
            for model in planned:
                failed = next((name for name in model.dependencies if name in self.failures), None)
                if failed is not None and model.name not in self.failures:
                    waiting = True
                    self.fail(model.name, without_step(model.name, failed, self.failures[failed]))

    def print(self, as_json: bool) -> int:
        """Print every finding, then a line for each model; returns the exit code."""
        if as_json:
            json.dump(self._document(), sys.stdout, indent=2)
            print()
        else:
            for line in self._lines():
                print(line)
        return FAULTY if self.failures or any(each.severity == "error" for each in self.findings) else OK

    def _document(self) -> dict[str, object]:
        return {
            "findings": [
                {
                    "severity": finding.severity,
                    "path": finding.path,
                    "line": finding.line,
                    "column": finding.column,
                    "message": finding.message,
                }
                for finding in self.findings
            ],
            "models": {
                name: {
                    "versions": [package.version for package in model.packages],
                    "failure": self.failures.get(name, ""),
                }
                for name, model in sorted(self.snapshot.models.items())
            }
            | {name: {"versions": [], "failure": reason} for name, reason in self._absent().items()},
        }

    def _absent(self) -> dict[str, str]:
        return {name: reason for name, reason in self.failures.items() if name not in self.snapshot.models}

    def _lines(self) -> Iterator[str]:
        yield from (printable_lines(str(finding)) for finding in self.findings)
        for name, output in self.outputs.items():
            yield f"{printable(name)} printed:"
            yield from (f"    {for_terminal(line)}" for line in output.splitlines()[-_OUTPUT_LINES:])
        if not self.snapshot.models:
            yield NO_MODEL
        for name, model in sorted(self.snapshot.models.items()):
            versions = ", ".join(str(package.version) for package in model.packages)
            failure = self.failures.get(name)
            yield printable_lines(f"{name}: {f'FAULTY: {failure}' if failure else f'ok, versions {versions}'}")
        yield from (printable_lines(f"{name}: FAULTY: {reason}") for name, reason in self._absent().items())
