"""Makes Serve run what the plan asks for: deploys, finds what an earlier controller deployed, and ends it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray import serve

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState
from deployments.control.group_deployment import deployment_options, group_application
from deployments.replica.hosted_model import packages_by_name
from deployments.serve_internals import application_owners, application_states, delete_applications
from repository_loader.deployment_plan import Plan

logger = logging.getLogger(__name__)


class Reconciler:
    """Deploys for one owner, the Serve application that the controller is part of; every method blocks.

    Each application that it deploys carries the owner's name in its `user_config`; it ends those only. `count` says how
    many replicas an autoscaled deployment has just now. Threads take turns: nothing is deployed behind `end_all`.
    """

    def __init__(self, options: ControllerOptions, owner: str, count: Callable[[str, str], int | None]) -> None:
        self._options = options
        self._count = count
        self._owner = owner
        self._turn = threading.Lock()
        self._deployed: dict[str, list[dict[str, Any]]] = {}
        self._former: set[str] = set()
        """Applications that a former controller has deployed, maybe under other options, and that go soon."""
        self._plan: Plan | None = None
        self._needed: dict[str, float] = {}
        """Until when an ensemble that no longer has a step may ask it, by the step's application."""
        self._refused: frozenset[str] = frozenset()
        """Applications that were not deployed, as somebody else's have their names."""
        self._free: frozenset[str] = frozenset()
        """Those of them whose names were free at the last look."""
        self._later: set[str] = set()
        """Applications that the plan no longer holds, and that are still needed."""

    def look(self, desired: DesiredState) -> tuple[bool, dict[str, str]]:
        """Return whether anything of this owner runs, and why applications could not be deployed, by name."""
        with self._turn:
            owners = application_owners()
            return any(self._is_own(app, owners) for app in owners), self._refusals(desired, owners)

    def reconcile(self, desired: DesiredState) -> dict[str, str]:
        """Deploy what is new or has changed, and end what the plan no longer holds; may be called again at any time.

        Steps that an ensemble has asked until now end later, in `end_due`: what is under way may still need them.

        Returns why an application was not deployed, by its name: somebody else's has that name.
        """
        with self._turn:
            refused = self._reconcile(desired)
            self._refused, self._free = frozenset(refused), frozenset()
            return refused

    def _reconcile(self, desired: DesiredState) -> dict[str, str]:
        owners = application_owners()
        # What somebody else has deleted is ours no longer, nor is what has taken its name.
        kept = (app for app in self._deployed if app in owners and self._is_own(app, owners))
        self._deployed = {app: self._deployed[app] for app in kept}
        self._former = {app for app in self._former if app in owners and self._is_own(app, owners)}
        packages, places, traffic = packages_by_name(desired.plan), _places(desired.plan), desired.traffic
        refused = self._refusals(desired, owners)
        targets: list[serve.RunTarget] = []
        wanted: dict[str, list[dict[str, Any]]] = {}
        for app, group in desired.applications().items():
            if app in refused:
                continue
            options = [
                deployment_options(plan, packages, self._options, places, self._owner, traffic) for plan in group
            ]
            if self._deployed.get(app) == options:
                continue
            models = [model for plan in group for model in plan.models]
            # An ensemble must learn where its steps are from now on.
            leaves = bool(models) and all(model.leaving and not model.dependencies for model in models)
            if leaves and app in owners and app not in self._deployed:
                self._former.add(app)
                continue
            wanted[app] = options
            application = group_application(options, group, self._options, self._count)
            scaled = any(plan.autoscaling is not None for plan in group)
            targets.append(serve.RunTarget(application, name=app, route_prefix=None, external_scaler_enabled=scaled))
        if targets:
            serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
        self._deployed |= wanted
        self._note_needed(desired.plan)
        ending = (self._deployed.keys() | self._former) - desired.applications().keys()
        self._later = ending & self._needed.keys()
        self._end(ending - self._later)
        return refused

    def has_free_name(self) -> bool:
        """Whether a name that was refused is free, as it was at the last look.

        `serve.delete` looks once a second whether an application has gone: it would wait for what took its name.
        """
        with self._turn:
            free = self._refused - application_states().keys()
            before, self._free = self._free, free
            return not free.isdisjoint(before)

    def _note_needed(self, plan: Plan) -> None:
        """Take what has changed since the last plan."""
        now_s = time.monotonic()
        self._needed = {name: until_s for name, until_s in self._needed.items() if until_s > now_s}
        if self._plan is not None:
            self._needed |= dict.fromkeys(_asked_no_longer(self._plan, plan), now_s + self._options.drain_timeout_s)
        self._plan = plan

    @property
    def ends_later(self) -> bool:
        """Whether something is left for `end_due`."""
        return bool(self._later)

    def end_due(self) -> None:
        """End the steps whose time has come."""
        with self._turn:
            due = [name for name in self._later if self._needed[name] <= time.monotonic()]
            if due:
                self._end(due)

    def _refusals(self, desired: DesiredState, owners: Mapping[str, str | None]) -> dict[str, str]:
        return {
            app: f"the Serve application '{app}' is not Eagleray's; delete it (serve.delete('{app}')) or rename "
            "the model"
            for app in desired.applications()
            if app in owners and not self._is_own(app, owners)
        }

    def _is_own(self, app: str, owners: Mapping[str, str | None]) -> bool:
        # An application that was deployed a moment ago says nothing of its owner yet.
        return owners[app] == self._owner or (owners[app] is None and app in self._deployed)

    def sweep(self, desired: DesiredState) -> None:
        """End what an earlier controller of this owner deployed and the plan does not hold."""
        wanted = desired.applications().keys()
        with self._turn:
            self._end(name for name in self._owned() if name not in wanted and name not in self._later)

    def end_all(self) -> None:
        """End everything that this owner runs."""
        with self._turn:
            self._end(self._owned())

    def _owned(self) -> list[str]:
        owners = application_owners()
        return [name for name in owners if self._is_own(name, owners)]

    def _end(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            logger.info("ending the Serve application '%s'", name)
            self._deployed.pop(name, None)
            self._former.discard(name)
            self._later.discard(name)
        delete_applications(names)


def _asked_no_longer(before: Plan, after: Plan) -> set[str]:
    """Return the applications that run steps of ensembles which have gone, or have those steps no longer."""
    places = _places(before)
    gone = _steps(before) - _steps(after)
    return {app for _, step in gone for app, _ in places.get(step, ())}


def _steps(plan: Plan) -> set[tuple[str, str]]:
    """Return the ensembles of a plan, each with every one of its steps."""
    models = (*plan.embedded, *(model for deployment in plan.deployments for model in deployment.models))
    return {(model.name, step) for model in models for step in model.dependencies}


def _places(plan: Plan) -> dict[str, list[tuple[str, str]]]:
    """Return which deployments run each model."""
    places: dict[str, list[tuple[str, str]]] = {}
    for deployment in plan.deployments:
        for model in deployment.models:
            places.setdefault(model.name, []).append((deployment.app_name, deployment.name))
    return places
