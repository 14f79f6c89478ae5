"""Steps of ensembles that the plan no longer holds, and that stay for a while: what is under way may still ask them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from repository_loader.copied_ensembles import copied_ensembles
from repository_loader.deployment_plan import DeploymentPlan, Place, Plan

_LOOK_S: Final = 1.0

Step = tuple[str, str]
"""The application and the name of a model."""


@dataclass(frozen=True, slots=True)
class _Needed:
    """Until when a step may be asked by ensembles which have gone, or have it no longer, each with where it has run."""

    until_s: float
    last_s: float
    by: frozenset[tuple[Place, str]]


class NeededSteps:
    """Those that go stay for `least_s`, and then as long as their ensembles answer, for `most_s` in all.

    `ingresses` is the place of ensembles that these run.
    """

    def __init__(self, least_s: float, most_s: float, ingresses: Place) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._ingresses = ingresses
        self._plan: Plan | None = None
        self._needed: dict[Step, _Needed] = {}
        self._kept: frozenset[Step] = frozenset()
        """Those of them that packed replicas have beside what the plan holds."""
        self.later: Collection[str] = ()
        """Applications that the plan no longer holds, and that stay for the sake of their steps."""

    def __bool__(self) -> bool:
        """Whether there is a step that the plan holds no longer."""
        return bool(self.later or self._kept)

    @property
    def applications(self) -> set[str]:
        """The applications of steps that are needed."""
        return {app for app, _ in self._needed}

    def take(self, plan: Plan) -> None:
        """Take what has changed since the last plan, and let go of the steps whose time is over."""
        now_s = time.monotonic()
        self._needed = {step: each for step, each in self._needed.items() if each.until_s > now_s}
        if self._plan is not None:
            for step, by in _asked_no_longer(self._plan, plan, self._ingresses).items():
                before = self._needed[step].by if step in self._needed else frozenset()
                self._needed[step] = _Needed(now_s + self._least_s, now_s + self._most_s, before.union(by))
        self._plan = plan

    def beside(self, plan: Plan, deployed: Mapping[str, Sequence[DeploymentPlan]]) -> Plan:
        """Return a plan with the steps that are needed besides, of those that packed replicas were `deployed` with.

        A step may be an ensemble, whose own steps in its process are needed then too.
        """
        placed = {model.name for model in plan.models}
        kept: set[Step] = set()

        def whole(deployment: DeploymentPlan) -> DeploymentPlan:
            app = deployment.app_name
            had = [model for each in deployed.get(app, ()) for model in each.models]
            names = [step for of, step in self._needed if of == app]
            for name in names:
                steps = (step for model in had if model.name == name for step in model.dependencies)
                names += [step for step in steps if step not in names]
            more = [model for model in had if model.name in names and model.name not in placed]
            kept.update((app, model.name) for model in more)
            return replace(deployment, models=(*deployment.models, *more))

        deployments = [whole(each) if each.placement == "packed" else each for each in plan.deployments]
        self._kept = frozenset(kept)
        return replace(plan, deployments=tuple(deployments))

    def put_off(self, leaving: Collection[Place], answering: Callable[[Collection[Place]], Collection[Place]]) -> None:
        """Have those stay whose time has come, and whose ensembles still answer what they have taken.

        Args:
            leaving: deployments that do.
            answering: which of some others do.
        """
        now_s = time.monotonic()
        due = {step: self._needed[step] for step in self._due(now_s)}
        asking = {by for each in due.values() if now_s < each.last_s for by in each.by}
        known = {by for by in asking if by[0] in leaving or by[0][0] in self.later or (by[0][0], by[1]) in self._kept}
        busy = answering({place for place, _ in asking - known})
        still = known.union(by for by in asking if by[0] in busy)
        for step, each in due.items():
            if now_s < each.last_s and not each.by.isdisjoint(still):
                self._needed[step] = replace(each, until_s=min(now_s + _LOOK_S, each.last_s))

    def make_room(self) -> None:
        """Have all stay no longer than they must."""
        now_s = time.monotonic()
        self._needed = {step: replace(each, last_s=now_s) for step, each in self._needed.items()}

    @property
    def are_due(self) -> bool:
        """Whether the time of one has come."""
        return bool(self._due(time.monotonic()))

    def _due(self, now_s: float) -> list[Step]:
        staying = (step for step in self._needed if step in self._kept or step[0] in self.later)
        return [step for step in staying if self._needed[step].until_s <= now_s]


def _asked_no_longer(before: Plan, after: Plan, ingresses: Place) -> dict[Step, set[tuple[Place, str]]]:
    """Return the steps that ran, where these or their ensembles do no longer, each with the ensembles and their places.

    A process that has both sees to it itself.
    """
    places = places_of(before)
    inside = {model.name for model in (*before.embedded, *copied_ensembles(before))}
    asked: dict[Step, set[tuple[Place, str]]] = {}
    for ensemble, step in _steps(before) - _steps(after):
        by = {*places.get(ensemble, ()), *([ingresses] if ensemble in inside else [])}
        for place in places.get(step, ()):
            if elsewhere := by - {place}:
                asked.setdefault((place[0], step), set()).update((each, ensemble) for each in elsewhere)
    return asked


def _steps(plan: Plan) -> set[tuple[str, str]]:
    """Return the ensembles of a plan, each with every one of its steps that has a place."""
    placed = {model.name for model in plan.models}
    return {(model.name, step) for model in plan.models for step in model.dependencies if step in placed}


def places_of(plan: Plan) -> dict[str, list[Place]]:
    """Return which deployments run each model."""
    places: dict[str, list[Place]] = {}
    for deployment in plan.deployments:
        for model in deployment.models:
            places.setdefault(model.name, []).append(deployment.place)
    return places
