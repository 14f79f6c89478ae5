"""Reads from Serve, and from the replicas, what became of each model version."""

import asyncio
import itertools
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ray.serve.exceptions import DeploymentUnavailableError
from ray.util import get_node_ip_address

from deployments.control.desired_state import DesiredState, Trial
from deployments.control.directory import LOADING, NO_REPLICA, READY, VersionEntry
from deployments.control.former_places import has_room
from deployments.control.model_table import ModelTable, untried
from deployments.control.trial_parts import tried_parts
from deployments.log.line_format import about
from deployments.ray_folder import ray_folder
from deployments.replica.hosted_model import Packages, packages_by_name
from deployments.serve_internals import (
    FAILED,
    UPDATING,
    DeploymentState,
    answers_by,
    application_states,
    handle_of,
    let_go_of,
)
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Place, Plan

logger = logging.getLogger(__name__)

_HEALTHY = frozenset({"HEALTHY", "UPSCALING", "DOWNSCALING"})
_UNHEALTHY = "UNHEALTHY"
_DESCRIBE_TIMEOUT_S = 2.0
_STALE_S = 3.0
_PLACED_S: Final = 10.0
"""How long after others have ended a replica may still find no room, though it gets theirs."""
_REPLACED_S: Final = 120.0
"""How long one may that is to replace another: Serve says so after 30 s, and the other one goes."""
_REASON_MARK = "ModelLoadError: "
_WORKER_DIED = "its worker process has died"
_LOST: Final = {
    "ActorDiedError(": "its process died as it was loaded, as when native code crashes or memory runs out",
    "ActorUnavailableError(": "its process was not to be reached as it was loaded, as when its node dies",
}
"""What Serve says of a replica that was lost before it had started, and nothing more, and what we say."""
_NODE_DIED: Final = "because its node has died"
_NEVER_RAN: Final = "The actor never ran"
"""What Ray adds, on a line of its own, to why an actor died that had not begun."""
_UNWELL: Final = "A replica's health check failed."
"""What Serve says of a replica that was lost as it took a change, or as others took theirs."""

Row = list[Any]
States = Mapping[str, Mapping[str, DeploymentState]]
Described = Mapping[Place, list[list[Row]]]
"""The rows of each replica, by application and deployment."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial: `reasons` of the versions that failed, by model; none when all are ready.

    `lacks_room` says that it has not ended, and that Serve has found no room for a replica of it for a while.
    """

    trial: Trial
    reasons: dict[str, dict[int, str]] = field(default_factory=dict)
    lacks_room: bool = False

    @property
    def succeeds(self) -> bool:
        """Whether all versions are ready."""
        return not self.reasons and not self.lacks_room


class StatusReader:
    """Brings a table of models up to date.

    Args:
        ingresses: returns the names of the ingresses that there are; blocks.
        fails_to_start: whether a deployment, of which Serve says this, had no replica and gets none. Serve calls it
            healthy.
    """

    def __init__(
        self,
        ingresses: Callable[[], Collection[str]] = tuple,
        fails_to_start: Callable[[str, str, DeploymentState], bool] = lambda app, name, state: False,
    ) -> None:
        self._ingresses = ingresses
        self._fails_to_start = fails_to_start
        self._overcome: dict[Place, str] = {}
        """What Serve said of deployments whose replicas have said that they serve."""
        self._started = time.monotonic()
        self._replaced: set[Place] = set()
        self._asked: set[Place] = set()
        self._ended_s = -math.inf
        """When something was seen last that is yet to end."""
        self._trials: tuple[tuple[Trial, float], ...] = ()
        """The trials as they were read last, each with the time since when."""
        self._packages = Packages()
        self.told: frozenset[str] = frozenset()
        """Applications of packed models that Serve changes nothing of, and whose replicas say what they have loaded."""

    def replicas_changed(self, deployment: Place) -> None:
        """Note that a packed group's replicas are others now, so that they are asked again what they loaded."""
        self._replaced.add(deployment)

    async def read(self, table: ModelTable, desired: DesiredState, *, taking_over: bool = False) -> list[Verdict]:
        """Ask Serve for the status of every application, take what it says, and return which trials have ended.

        Nothing is taken when the table has become that of another plan meanwhile: what was told is of what was there
        before. Trials that have succeeded by then have done so all the same: in a stream of commands each look is late.
        A controller that is `taking_over` asks what serves of deployments whose replicas are being replaced, and hears
        of no trial: what Serve says of those is older than what it is about to deploy.

        Raises:
            Exception: of Ray's, when Serve's controller or a replica does not answer.
        """
        applications = self._judged(await asyncio.to_thread(application_states))
        described = await self._describe(table, desired, applications, taking_over=taking_over)
        packed = [each for each in table.deployments if _is_packed(each)]
        self.told = frozenset(
            each.app_name for each in packed if described.get(each.place) and _is_healthy(each, applications)
        )
        waits = any(deployment is None for trial in desired.trials for deployment, _ in tried_parts(desired, trial))
        ingresses = await asyncio.to_thread(self._ingresses) if waits else ()
        if table.plan is not desired.plan:
            self._replaced.update(described)
            verdicts = [] if taking_over else self._verdicts(table, desired, applications, described, ingresses)
            return [verdict for verdict in verdicts if verdict.succeeds]
        self._take_states(table, desired, applications, described)
        if table.unloading:
            running = {(app, name) for app, deployments in applications.items() for name in deployments}
            asked = all(each.place in described and _is_healthy(each, applications) for each in packed)
            hosted = {(row[0], row[1]) for replicas in described.values() for rows in replicas for row in rows}
            table.left(running, hosted if asked else None)
        return [] if taking_over else self._verdicts(table, desired, applications, described, ingresses)

    def _judged(self, applications: States) -> States:
        def judged(app: str, name: str, state: DeploymentState) -> DeploymentState:
            fails = self._overcome.get((app, name)) != state.message and self._fails_to_start(app, name, state)
            return state._replace(status=_UNHEALTHY) if fails else state

        return {
            app: {name: judged(app, name, state) for name, state in deployments.items()}
            for app, deployments in applications.items()
        }

    def _take_states(
        self, table: ModelTable, desired: DesiredState, applications: States, described: Described
    ) -> None:
        """Take what Serve, and the replicas that were asked, say of all versions but what is new in a trial."""
        unknown = untried(desired)
        versions: dict[tuple[str, int], list[_Part]] = {}
        for deployment in table.deployments:
            state = _state(deployment, applications)
            if state is None:
                continue
            shown = filter(table.shows, deployment.models)
            models = [model for model in shown if (model.name, model.version) not in unknown]
            rows = described.get(deployment.place, [])
            if _is_packed(deployment) and (rows or state.status in _HEALTHY):
                if rows:  # else nobody was asked, or nobody answered
                    table.tries.take(deployment.place, itertools.chain.from_iterable(rows))
                _take_packed({(model.name, model.version) for model in models}, rows, table)
                continue
            served, lacking = _served(rows), _lacking(deployment, state, desired.facts)
            for model in models:
                part = _Part(model, deployment, state, (model.name, model.version) in served, lacking)
                versions.setdefault((model.name, model.version), []).append(part)
        for parts in versions.values():
            self._take(parts, table)

    def _take(self, parts: Sequence["_Part"], table: ModelTable) -> None:
        """Take the states of the deployments that run one version: a replica that serves it makes it ready."""
        model = parts[0].model
        entry = table.entry(model)
        statuses = {part.state.status for part in parts}
        if any(part.serves for part in parts) or not _HEALTHY.isdisjoint(statuses):
            if entry.state != READY:
                entry.loaded("", time.monotonic() - self._started)
                whose = about(model.name, model.version)
                logger.info("successfully loaded '%s' version %d", model.name, model.version, extra=whose)
            if entry.state == READY:
                self._take_failures(parts, entry)
        elif statuses <= {"DEPLOY_FAILED"}:
            table.fail(model, _reason(parts[-1].state.message))
        elif statuses <= FAILED:
            before = entry.reason if entry.replacing else ""
            cause = next((_reason(part.state.message) for part in parts if part.state.failed_to_start), "")
            if all(part.lacking for part in parts):
                entry.finds_no_room(parts[0].lacking, lost=True)
            elif cause or not before.startswith(NO_REPLICA):
                entry.lost_its_replicas(cause)
            if entry.reason != before:
                logger.error("'%s' version %d: %s", model.name, model.version, entry.reason)
        elif entry.state != READY and all(part.lacking for part in parts):
            before = entry.reason
            entry.finds_no_room(parts[0].lacking)
            if entry.reason != before:
                logger.warning("'%s' version %d: %s", model.name, model.version, entry.reason)

    def _take_failures(self, parts: Sequence["_Part"], entry: VersionEntry) -> None:
        """Note why some of the instance groups of a version that is ready failed to load."""
        failed = [part for part in parts if part.state.status == "DEPLOY_FAILED"]
        reason = "; ".join(part.failure() for part in failed)
        if reason and entry.reason != reason:
            model = parts[0].model
            logger.error("'%s' version %d serves, but %s", model.name, model.version, reason)
        entry.reason = reason

    async def _describe(
        self, table: ModelTable, desired: DesiredState, applications: States, *, taking_over: bool
    ) -> Described:
        """Ask the replicas what they loaded wherever something is open; returns each replica's rows by deployment."""
        await self._forget_all_but({each.place for each in table.deployments})
        changing = not taking_over and (bool(desired.trials) or table.unloading)
        asking: dict[Place, Coroutine[Any, Any, list[list[Row]]]] = {}
        for deployment in table.deployments:
            key = deployment.place
            state = _state(deployment, applications)
            if state is None:
                continue
            # Serve says these of a deployment as a whole: some of its replicas may serve, or the last ones serve on.
            served = taking_over or _served_until_now(deployment, table)
            if state.status == _UNHEALTHY or (state.status in FAILED and served):
                asking[key] = self._ask(key, in_part=True, must_answer=False)
            elif state.status == UPDATING and taking_over:
                asking[key] = self._ask(key, in_part=True, must_answer=True)
            elif state.status in _HEALTHY and self._is_open(deployment, table, desired):
                asking[key] = self._ask(key, in_part=False, must_answer=not changing)
        self._asked.update(asking)
        found = await asyncio.gather(*asking.values())
        described = dict(zip(asking, found, strict=True))
        self._overcome |= {key: applications[key[0]][key[1]].message for key, rows in described.items() if rows}
        return described

    async def _forget_all_but(self, wanted: Collection[Place]) -> None:
        self._replaced.intersection_update(wanted)
        self._overcome = {key: text for key, text in self._overcome.items() if key in wanted}
        for key in self._asked.difference(wanted):
            self._asked.discard(key)
            await asyncio.to_thread(let_go_of, *key)

    def _is_open(self, deployment: DeploymentPlan, table: ModelTable, desired: DesiredState) -> bool:
        tried = desired.on_trial
        if any(model.name in tried for model in deployment.models):
            return True
        if not _is_packed(deployment):
            return False
        if deployment.place in self._replaced or table.unloading:
            return True
        entries = (table.entry(model) for model in deployment.models)
        return any(entry.state == LOADING or entry.replacing for entry in entries)

    async def _ask(self, key: Place, *, in_part: bool, must_answer: bool) -> list[list[Row]]:
        """Return the rows of each replica, or of those that answer (`in_part`); none where one does not answer.

        Raises:
            Exception: of Ray's, where one `must_answer` and does not.
        """
        app, name = key
        self._replaced.discard(key)
        until_s = asyncio.get_running_loop().time() + _DESCRIBE_TIMEOUT_S
        answers: Sequence[Any]
        try:
            answers = await answers_by(handle_of(name, app).broadcast("describe"), until_s)
        except Exception as error:
            answers = [error]
        told = [answer["models"] for answer in answers if not isinstance(answer, BaseException)]
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            self._replaced.add(key)
        if not errors or (in_part and told):
            return told
        if must_answer and not isinstance(errors[0], DeploymentUnavailableError):
            raise errors[0]
        # One that is about to go does not answer, and one that has just been deployed is not known yet; others are
        # asked again soon.
        logger.debug("the replicas of %s did not tell what they loaded: %s", key, type(errors[0]).__name__)
        return []

    def _verdicts(
        self,
        table: ModelTable,
        desired: DesiredState,
        applications: States,
        described: Described,
        ingresses: Collection[str],
    ) -> list[Verdict]:
        now_s = time.monotonic()
        self._trials = tuple(
            (trial, next((since_s for known, since_s in self._trials if known is trial), now_s))
            for trial in desired.trials
        )
        packages = packages_by_name(desired.plan)
        packages.take_told(self._packages, desired.plan)
        self._packages = packages
        if table.unloading:
            self._ended_s = now_s
        # Others may go that have been unloaded.
        placed, new = now_s - self._ended_s > _PLACED_S, untried(desired)
        verdicts = []
        for trial, since_s in self._trials:
            tried_s = now_s - since_s
            # What Serve says at first may be of what was there before.
            believed = applications if tried_s > _STALE_S else _without_failed(applications)
            open_count, lacks_room = 0, False
            reasons: dict[str, dict[int, str]] = {}
            for name in trial.before.keys() & desired.plan.unplaced.keys():
                reasons[name] = {1: desired.plan.unplaced[name]}
            for deployment, model in tried_parts(desired, trial):
                digest = packages.told(model)["digest"]
                if deployment is None:
                    reason = table.reports.reason((model.name, model.version), digest, ingresses)
                else:
                    refusal = table.refused.get(deployment.app_name)
                    reason = refusal or _part(deployment, model, digest, believed, described)
                    if tried_s > _STALE_S and _finds_no_room(deployment, applications):
                        lacks_room = True
                        waited = placed and ((model.name, model.version) in new or tried_s > _REPLACED_S)
                        if reason is None and trial.command and waited:
                            reason = _no_room(deployment)
                if reason is None:
                    open_count += 1
                elif reason:
                    reasons.setdefault(model.name, {})[model.version] = reason
            if reasons or not open_count:
                verdicts.append(Verdict(trial, reasons))
            elif trial.makes_room and lacks_room:
                verdicts.append(Verdict(trial, lacks_room=True))
        return verdicts


def _without_failed(applications: States) -> States:
    return {
        app: {name: state for name, state in deployments.items() if state.status not in FAILED}
        for app, deployments in applications.items()
    }


def _take_packed(wanted: set[tuple[str, int]], replicas: Iterable[list[Row]], table: ModelTable) -> None:
    for rows in replicas:
        served = _served([rows])
        for row in rows:
            name, version, reason, *_ = row
            found = table.find(name, version)
            if (name, version) not in wanted or found is None or (reason and (name, version) in served):
                continue
            if found.state != READY or reason:
                table.take_row(found, row)


class _Part(NamedTuple):
    """The instances of a model version on one device."""

    model: ModelPlan
    deployment: DeploymentPlan
    state: DeploymentState
    serves: bool = False
    """Whether a replica was asked, and has loaded it."""
    lacking: str = ""
    """What a replica needs, where there is no room for one."""

    def failure(self) -> str:
        device = "CPU" if self.deployment.gpu is None else f"GPU {self.deployment.gpu}"
        return f"its instances on {device} failed to load: {_reason(self.state.message)}"


def _lacking(deployment: DeploymentPlan, state: DeploymentState, facts: ClusterFacts) -> str:
    """Return what a replica needs where there is no room for one, else "".

    Serve does not say so of what was ready: there it is where no node is large enough.
    """
    lacks_room = state.lacks_room or (state.status in FAILED and not _fits(deployment, facts))
    return _no_room(deployment) if lacks_room else ""


def _fits(deployment: DeploymentPlan, facts: ClusterFacts) -> bool:
    """Whether a replica would find room in a cluster where nothing else runs."""
    return has_room(Plan(), Plan((replace(deployment, replica_count=1, autoscaling=None),)), facts)


def _no_room(deployment: DeploymentPlan) -> str:
    """Return what a replica needs, for which Serve has found no node."""
    needs = [f"{deployment.num_cpus:g} CPUs"] if deployment.num_cpus else []
    needs += [deployment.device] if deployment.num_gpus else []
    needs += [f"{size} bytes of memory"] if (size := deployment.reserved_memory_bytes) else []
    needs += [str(deployment.needs)] if deployment.needs else []
    return f"a replica needs {' and '.join(needs)}, and no node has that much free"


def _part(
    deployment: DeploymentPlan,
    model: ModelPlan,
    digest: str,
    applications: States,
    described: Described,
) -> str | None:
    """Return why a deployment does not run a version, "" if all its replicas do, None as long as that is open."""
    state = _state(deployment, applications)
    if state is None:
        return None
    if state.status in FAILED:
        return _reason(state.message)
    replicas = described.get(deployment.place, [])
    found = [
        [row[2] for row in rows if (row[0], row[1], row[4]) == (model.name, model.version, digest)] for rows in replicas
    ]
    for reasons in found:
        if any(reasons):
            return str(next(filter(None, reasons)))
    if state.status == "HEALTHY" and deployment.autoscaling is None and len(found) < deployment.replica_count:
        return None  # Serve hands one of them a change just now, and does not list it
    return "" if found and all(found) and state.status in _HEALTHY else None


def _served_until_now(deployment: DeploymentPlan, table: ModelTable) -> bool:
    return any(table.entry(model).state == READY for model in filter(table.shows, deployment.models))


def _state(deployment: DeploymentPlan, applications: States) -> DeploymentState | None:
    """Return what Serve says of a deployment, None while it has none."""
    return applications.get(deployment.app_name, {}).get(deployment.name)


def _is_healthy(deployment: DeploymentPlan, applications: States) -> bool:
    state = _state(deployment, applications)
    return state is not None and state.status in _HEALTHY


def _served(replicas: Iterable[list[Row]]) -> set[tuple[str, int]]:
    """Return the versions that some replica has loaded."""
    return {(name, version) for rows in replicas for name, version, reason, *_ in rows if not reason}


def _finds_no_room(deployment: DeploymentPlan, applications: States) -> bool:
    """Whether Serve waits for room for replicas of a deployment."""
    state = _state(deployment, applications)
    return state is not None and state.status not in _HEALTHY and state.lacks_room


def _is_packed(deployment: DeploymentPlan) -> bool:
    return deployment.placement == "packed"


def _reason(message: str) -> str:
    """Return the reason that a replica gave, out of Serve's text around it."""
    _, mark, reason = message.rpartition(_REASON_MARK)
    if mark:
        return reason.strip()
    if _NODE_DIED in message:
        return "its node died as it was loaded"
    lines = [line.strip() for line in message.splitlines() if line.strip() and _NEVER_RAN not in line]
    reason = lines[-1] if lines else "the replica did not start"
    for error, said in _LOST.items():
        if reason.startswith(error):
            return said
    if reason.startswith(_UNWELL):
        return "a process that was to load it, or serves it, died or failed its health check meanwhile"
    # A worker that cannot open Ray's log files dies without a word of why.
    here = f"ip: {get_node_ip_address()}" in message
    if here and _WORKER_DIED in reason and (folder := _full_folder()):
        return f"its process died as it started: there is no room in {folder}"
    return reason


def _full_folder() -> str:
    """Return the folder in which Ray's processes of this node write, if there is less than a MiB left, else ""."""
    folder = ray_folder().parent
    try:
        return str(folder) if shutil.disk_usage(folder).free < 1 << 20 else ""
    except OSError:  # Ray was told of another one
        return ""
