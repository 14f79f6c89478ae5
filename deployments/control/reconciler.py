"""Makes Serve run what the plan asks for: deploys, finds what an earlier controller deployed, and ends it."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ray import serve

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState
from deployments.control.former_places import has_room
from deployments.control.group_deployment import deployment_options, group_application, user_config, waits_s
from deployments.control.needed_steps import NeededSteps, places_of
from deployments.control.trial_parts import may_come_back
from deployments.replica.hosted_model import Packages, packages_by_name
from deployments.serve_internals import (
    DEPLOY_FAILED,
    HEALTHY,
    UNHEALTHY,
    UPDATING,
    DeploymentState,
    application_owners,
    application_states,
    delete_applications,
    replica_counts,
    replica_targets,
)
from repository_loader.deployment_plan import DeploymentPlan, Place, Plan
from repository_loader.traffic import Traffic

logger = logging.getLogger(__name__)

_TRIES: Final = "max_constructor_retry_count"
_AGAIN_S: Final = 10.0
"""How long after it was deployed an application is deployed again whose replicas fail to start, though they ran."""
_GATHER_S: Final = 2.0
"""For how long at most loads of packed models are gathered while their replicas take others."""


@dataclass(frozen=True, slots=True)
class _Deployed:
    """The deployments of an application, as they were deployed last, when, and whether packed models load since."""

    plans: tuple[DeploymentPlan, ...]
    options: list[dict[str, Any]]
    since_s: float
    loads: bool


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A deployment that the plan no longer holds; it loads nothing, and ends when it has answered what it has taken."""

    plan: DeploymentPlan
    options: dict[str, Any]
    until_s: float


class Reconciler:
    """Deploys for one owner, the Serve application that the controller is part of; every method blocks.

    Each application that it deploys carries the owner's name in its `user_config`; it ends those only. `count` says how
    many replicas an autoscaled deployment has just now, `busy` how many deployments have, of those with something under
    way, and 0 where some of what is expected are not there, `answering` in which of them, or of the ingresses,
    something that was unloaded still answers what it has taken. Threads take turns: nothing is deployed behind
    `end_all`.
    """

    def __init__(
        self,
        options: ControllerOptions,
        owner: str,
        count: Callable[[str, str], int | None],
        busy: Callable[[Mapping[Place, int]], Mapping[Place, int]],
        answering: Callable[[Collection[Place]], Collection[Place]],
    ) -> None:
        self._options = options
        self._count = count
        self._busy = busy
        self._answering = answering
        self._owner = owner
        self._turn = threading.Lock()
        self._desired: DesiredState | None = None
        self._deployed: dict[str, _Deployed] = {}
        self._ran: dict[str, list[dict[str, Any]]] = {}
        """With what options the replicas of applications ran last."""
        self._retries: dict[Place, int] = {}
        """How often deployments were deployed again, as Serve had given them up."""
        self._in_place: set[Place] = set()
        """Deployments whose replicas go before their successors start, as there was no room for both."""
        self._former: set[str] = set()
        """Applications that a former controller has deployed, maybe under other options, and that go soon."""
        self._packages = Packages()
        self._steps = NeededSteps(options.drain_timeout_s, options.unload_timeout_s, (owner, options.ingress))
        self._refused: frozenset[str] = frozenset()
        """Applications that were not deployed, as somebody else's have their names."""
        self._due: frozenset[str] = frozenset()
        """Those of them whose names were free at the last look, and deployed ones that had gone."""
        self._leaving: dict[Place, _Leaving] = {}
        self._end_slowly: frozenset[Place] = frozenset()
        """Deployments whose replicas may take as long as a batch when Serve ends them."""
        self._unfinished = False
        """Whether the last turn has failed in the middle."""
        self._told_s: Mapping[str, float] = {}
        """When replicas of packed models have said what they have loaded, by application."""
        self._gathered: set[str] = set()
        """Applications that were not deployed again, as their replicas have not said so since."""

    def look(self, desired: DesiredState) -> tuple[bool, dict[str, str]]:
        """Return whether anything of this owner runs, and why applications could not be deployed, by name."""
        with self._turn:
            owners = application_owners()
            return any(self._is_own(app, owners) for app in owners), self._refusals(desired, owners)

    def reconcile(self, desired: DesiredState) -> dict[str, str]:
        """Deploy what is new or has changed, and end what the plan no longer holds; may be called again at any time.

        Steps that an ensemble has asked until now end later, in `end_due`: what is under way may still need them. So do
        deployments whose replicas have something under way; they load nothing any more, and unload what they have.

        Returns why an application was not deployed, by its name: somebody else's has that name.
        """
        with self._turn:
            refused = self._reconcile(desired)
            self._refused, self._due = frozenset(refused), frozenset()
            return refused

    def _reconcile(self, desired: DesiredState) -> dict[str, str]:
        self._desired, self._unfinished = desired, True
        owners = application_owners()
        # What somebody else has deleted is ours no longer, nor is what has taken its name.
        kept = (app for app in self._deployed if app in owners and self._is_own(app, owners))
        self._deployed = {app: self._deployed[app] for app in kept}
        self._former = {app for app in self._former if app in owners and self._is_own(app, owners)}
        self._steps.put_off(self._leaving, self._answering)
        self._steps.take(desired.plan)
        whole = self._steps.beside(desired.plan, {app: each.plans for app, each in self._deployed.items()})
        packages = packages_by_name(whole, may_come_back(desired))
        places, traffic = places_of(desired.plan), desired.traffic
        packages.take_told(self._packages, whole)
        self._packages = packages
        refused = self._refusals(desired, owners)
        targets: list[serve.RunTarget] = []
        wanted: dict[str, _Deployed] = {}
        now_s, self._gathered = time.monotonic(), set()
        self._leaving = self._still_leaving(desired)
        groups: dict[str, list[DeploymentPlan]] = {}
        for plan in (*(each.plan for each in self._leaving.values()), *whole.deployments):
            groups.setdefault(plan.app_name, []).append(plan)
        for app, group in groups.items():
            if app in refused:
                continue
            if self._gathers_until_s(app) > now_s:
                self._gathered.add(app)
                continue
            options = [
                leaving.options
                if (leaving := self._leaving.get((app, plan.name))) is not None
                else self._options_of(plan, packages, places, traffic)
                for plan in group
            ]
            options = self._with_room(app, options, desired)
            if app in self._deployed and self._deployed[app].options == options:
                continue
            models = [model for plan in group for model in plan.models]
            # An ensemble must learn where its steps are from now on.
            leaves = bool(models) and all(model.leaving and not model.dependencies for model in models)
            if leaves and app in owners and app not in self._deployed:
                self._former.add(app)
                continue
            packed = {model.name for model in models if model.placement == "packed"}
            wanted[app] = _Deployed(tuple(group), options, now_s, not packed.isdisjoint(desired.on_trial))
            application = group_application(options, group, self._options, self._count)
            scaled = any(plan.autoscaling is not None for plan in group)
            targets.append(serve.RunTarget(application, name=app, route_prefix=None, external_scaler_enabled=scaled))
        if targets:
            serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
        self._deployed |= wanted
        ending = (self._deployed.keys() | self._former) - groups.keys()
        self._steps.later = later = ending & self._steps.applications
        self._end(ending - later)
        self._unfinished = False
        return refused

    def _with_room(self, app: str, options: list[dict[str, Any]], desired: DesiredState) -> list[dict[str, Any]]:
        """Have replicas that ask for other resources, and find no room beside those that they replace, take theirs.

        Serve would wait for room for ever, and change nothing of what the old ones have loaded meanwhile. It replaces
        some after the others, so what is deployed before all run keeps to that.
        """
        deployed = self._deployed.get(app)
        if deployed is not None:
            before = {each["name"]: each["ray_actor_options"] for each in deployed.options}
            other = {each["name"] for each in options if each["ray_actor_options"] != before.get(each["name"])}
            resized = tuple(plan for plan in deployed.plans if plan.name in other)
            if resized and not has_room(Plan(resized), desired.plan, desired.facts):
                self._in_place |= {(app, name) for name in other}
            elif resized and self._ran.get(app) == deployed.options:
                self._in_place -= {(app, name) for name in other}
        return [{**each, "max_surge_percent": 0} if (app, each["name"]) in self._in_place else each for each in options]

    def _options_of(
        self,
        plan: DeploymentPlan,
        packages: Packages,
        places: Mapping[str, list[Place]],
        traffic: Mapping[str, Traffic],
    ) -> dict[str, Any]:
        slow_end = plan.place in self._end_slowly
        options = deployment_options(plan, packages, self._options, places, self._owner, traffic, slow_end=slow_end)
        # Serve takes no notice of what is deployed as it was before.
        return {**options, _TRIES: options[_TRIES] + self._retries.get(plan.place, 0)}

    def replicas_told(self, apps: Collection[str]) -> None:
        """Note that the replicas of packed models have said what they have loaded, and that Serve changes none."""
        self._told_s = {**self._told_s, **dict.fromkeys(apps, time.monotonic())}
        self._ran |= {app: self._deployed[app].options for app in apps if app in self._deployed}

    def _gathers_until_s(self, app: str) -> float:
        """Return until when what changes in an application is gathered, so that one deployment brings it all.

        As long as Serve changes a packed replica it does not say that it runs, and nobody asks what it has loaded: in a
        stream of loads, each deployed by itself, the first would be answered when the last has come.
        """
        deployed = self._deployed.get(app)
        if deployed is None or not deployed.loads or self._told_s.get(app, 0.0) > deployed.since_s:
            return 0.0
        return deployed.since_s + _GATHER_S

    def give_time(self, places: Collection[Place]) -> float:
        """Have Serve wait for replicas of these deployments as long as a batch may take, and of no others.

        Returns how long it waits then, in seconds.
        """
        with self._turn:
            self._end_slowly = frozenset(places)
            if self._desired is not None:
                self._reconcile(self._desired)
        return waits_s(self._options, slow_end=True)

    def must_deploy(self) -> bool:
        """Whether an application of the plan is not there, and its name was free, or another's, at the last look too.

        `serve.delete` looks once a second whether an application has gone: it would wait for what took its name. And
        whether replicas do not come up, see `_given_up` and `_crowded`.
        """
        with self._turn:
            states = application_states()
            lost = {app for app, deployed in self._deployed.items() if _is_gone(states.get(app), deployed)}
            if lost - self._due:
                logger.warning("somebody has ended the Serve applications %s", sorted(lost - self._due))
            before, self._due = self._due, frozenset(lost | (self._refused - states.keys()))
            given_up = self._given_up(states)
            for app, name in given_up:
                logger.warning("Serve has given up %s of '%s', which ran before; it is deployed again", name, app)
                self._retries[app, name] = self._retries.get((app, name), 0) + 1
                self._ran[app] = [{**each, _TRIES: each[_TRIES] + (each["name"] == name)} for each in self._ran[app]]
            crowded = self._crowded(states)
            if crowded is not None:
                logger.warning("%s of '%s' finds no room beside what it replaces, which goes first", *crowded[::-1])
                self._in_place.add(crowded)
            return bool(given_up or crowded) or not self._due.isdisjoint(before)

    def _given_up(self, states: Mapping[str, Mapping[str, DeploymentState]]) -> list[Place]:
        """Return the deployments whose replicas Serve starts no more, though as they are deployed they ran.

        It tries once as long as it knows of none that ran, and that its controller forgets when it dies.
        """
        found: list[Place] = []
        now_s = time.monotonic()
        for app, deployed in self._deployed.items():
            if any(plan.autoscaling is not None for plan in deployed.plans):
                continue  # it may have none, and has some started while somebody asks
            statuses = {name: state.status for name, state in states.get(app, {}).items()}
            failed = [(app, name) for name, status in statuses.items() if status == DEPLOY_FAILED]
            if statuses and {*statuses.values()} <= {HEALTHY, UNHEALTHY}:
                self._ran[app] = deployed.options
            elif self._ran.get(app) == deployed.options and now_s - deployed.since_s > _AGAIN_S:
                found += failed
        return found

    def _crowded(self, states: Mapping[str, Mapping[str, DeploymentState]]) -> Place | None:
        """Return a deployment for whose new replicas there is room, but only without those that they replace.

        One at a time, as what it gives up may be all that the others wait for. `_with_room` foresees none of what a
        new controller deploys, as it does not know the resources before, and other options replace replicas too.
        """
        waiting = {
            (app, name)
            for app in self._deployed
            for name, state in states.get(app, {}).items()
            if state.status == UPDATING and state.lacks_room
        }
        waiting -= self._in_place | self._leaving.keys()
        if not waiting or self._desired is None or not has_room(Plan(), self._desired.plan, self._desired.facts):
            return None
        counts = replica_counts()
        return min((place for place in waiting if counts.get(place)), default=None)

    def _still_leaving(self, desired: DesiredState) -> dict[Place, _Leaving]:
        """Return what the plan no longer holds and is busy, of what was deployed and nobody needs any more."""
        kept = {plan.place for plan in desired.plan.deployments}
        needed = self._steps.applications - desired.applications().keys()
        now_s = time.monotonic()
        gone = {
            (app, plan.name): (plan, options)
            for app, deployed in self._deployed.items()
            if app not in needed
            for plan, options in zip(deployed.plans, deployed.options, strict=True)
        }
        overdue = {place for place, leaving in self._leaving.items() if leaving.until_s <= now_s}
        busy = self._busy(self._expected({place: gone[place][0] for place in gone.keys() - kept - overdue}))
        return {
            place: self._leaving.get(place) or self._leave(plan, options, busy[place])
            for place, (plan, options) in gone.items()
            if busy.get(place) or (place in busy and place in self._leaving)
        }

    def _expected(self, plans: Mapping[Place, DeploymentPlan]) -> dict[Place, int]:
        """Return how many replicas deployments should have; only Serve knows that of those that scaled until now."""
        known = {place: leaving.plan.replica_count for place, leaving in self._leaving.items()}
        scaled = any(plan.autoscaling is not None for place, plan in plans.items() if place not in known)
        targets = replica_targets() if scaled else {}
        return {
            place: known.get(place) or (targets.get(place, 0) if plan.autoscaling is not None else plan.replica_count)
            for place, plan in plans.items()
        }

    def _leave(self, plan: DeploymentPlan, options: Mapping[str, Any], replicas: int) -> _Leaving:
        logger.info("%s of '%s' answers what it has taken before it ends", plan.name, plan.app_name)
        nothing = user_config(replace(plan, models=()), Packages(), {}, self._owner)
        return _Leaving(
            replace(plan, replica_count=replicas),
            {**options, "num_replicas": replicas, "user_config": nothing},
            time.monotonic() + self._options.unload_timeout_s,
        )

    @property
    def ends_later(self) -> bool:
        """Whether something is left for `end_due`."""
        return bool(self._steps or self._leaving or self._gathered or self._unfinished)

    def end_due(self) -> None:
        """End the steps whose time has come, and what leaves and has nothing under way, or is in the way of others."""
        with self._turn:
            now_s = time.monotonic()
            if (self._leaving or self._steps) and self._lacks_room():
                self._leaving = {place: replace(each, until_s=now_s) for place, each in self._leaving.items()}
                self._steps.make_room()
            self._steps.put_off(self._leaving, self._answering)
            due = self._unfinished or any(self._gathers_until_s(app) <= now_s for app in self._gathered)
            overdue = any(each.until_s <= now_s for each in self._leaving.values())
            expected = self._expected({place: each.plan for place, each in self._leaving.items()})
            if self._desired is not None and (
                due or self._steps.are_due or overdue or self._busy(expected).keys() != expected.keys()
            ):
                self._reconcile(self._desired)

    def _lacks_room(self) -> bool:
        """Whether Serve has found no room for a while for a replica of this owner's that is not about to end."""
        states = application_states()
        return any(
            state.lacks_room
            for app in self._deployed
            for name, state in states.get(app, {}).items()
            if (app, name) not in self._leaving
        )

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
        with self._turn:
            stays = desired.applications().keys() | {*self._steps.later} | {app for app, _ in self._leaving}
            self._end(name for name in self._owned() if name not in stays)

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
        delete_applications(names)
        for name in names:
            self._deployed.pop(name, None)
            self._ran.pop(name, None)
            self._retries = {place: count for place, count in self._retries.items() if place[0] != name}
            self._in_place = {place for place in self._in_place if place[0] != name}
            self._leaving = {place: each for place, each in self._leaving.items() if place[0] != name}
            self._former.discard(name)


def _is_gone(found: Mapping[str, Any] | None, deployed: _Deployed) -> bool:
    """Return whether Serve has none of these deployments any more, but nothing or others in their place.

    What was deployed a moment ago has none yet.
    """
    return found is None or (bool(found) and found.keys().isdisjoint(plan.name for plan in deployed.plans))
