"""What the index says of versions, by what Serve says of their deployments."""

import asyncio
import inspect
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve._private import deployment_state
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from deployments import serve_internals
from deployments.control import status_reader
from deployments.control.desired_state import DesiredState
from deployments.control.directory import LOADING, NO_REPLICA, READY, UNAVAILABLE
from deployments.control.former_places import has_room
from deployments.control.model_table import ModelTable
from deployments.control.status_reader import StatusReader, Verdict, _Part
from deployments.replica.hosted_model import HostedModel, Packages
from deployments.serve_internals import DeploymentState
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import Plan
from tests.deployments.control.test_desired_state import write
from tests.deployments.control.test_former_places import CPUS, PLACED, Repository
from tests.deployments.control.test_redeployment import deployed

UNHEALTHY = "A replica's health check failed. This deployment will be UNHEALTHY until the replica recovers."
NO_ROOM = """A replica failed to start with exception. Retrying. Error:
ray::ServeReplica:step:v1.initialize_and_get_metadata() (pid=1, ip=10.0.0.1)
  File "node_folder.py", line 51, in __init__
OSError: [Errno 28] there are 4096 bytes free in /dev/shm
"""
WAITS_FOR_ROOM = "Deployment 'v1' has 1 replicas that have taken more than 30s to be scheduled. This may be due to"
DIED = "A replica failed to start with exception. Retrying 2 more time(s). Error:\nActorDiedError()"


def test_a_model_whose_replicas_do_not_come_up_again_has_the_reason_in_the_index(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    desired, table = Repository(tmp_path).read(), ModelTable()
    table.replace(desired, {})
    (deployment,) = desired.plan.deployments
    (model,) = deployment.models
    reader, entry, facts = StatusReader(), table.entry(model), desired.facts

    def told(status: str, message: str) -> tuple[str, str, bool]:
        states = {deployment.app_name: {deployment.name: DeploymentState(status, message)}}
        reader._take_states(table, replace(desired, facts=facts), states, {})
        return entry.state, entry.reason, entry.replacing

    cause = f"{NO_REPLICA}, but the last one failed to start: OSError: [Errno 28] there are 4096 bytes free in /dev/shm"
    assert told("HEALTHY", "") == (READY, "", False)
    assert told("UNHEALTHY", UNHEALTHY) == (UNAVAILABLE, NO_REPLICA, True)
    assert told("UNHEALTHY", NO_ROOM) == (UNAVAILABLE, cause, True)
    assert told("UNHEALTHY", UNHEALTHY) == (UNAVAILABLE, cause, True)
    died = "its process died as it was loaded, as when native code crashes or memory runs out"
    assert told("UNHEALTHY", DIED) == (UNAVAILABLE, f"{NO_REPLICA}, but the last one failed to start: {died}", True)
    assert told("UNHEALTHY", NO_ROOM.replace("4096", "8192")) == (UNAVAILABLE, cause.replace("4096", "8192"), True)
    assert told("HEALTHY", "") == (READY, "", False)
    assert told("UNHEALTHY", UNHEALTHY) == (UNAVAILABLE, NO_REPLICA, True)
    facts = ClusterFacts((NodeFacts(0),))  # the node that it ran on has died
    no_node = "a replica needs 0.05 CPUs, and no node has that much free"
    for message in (UNHEALTHY, NO_ROOM):
        assert told("UNHEALTHY", message) == (UNAVAILABLE, no_node, True)
        assert not entry.fails_to_start, "a load that changes nothing would try it anew, fail and end it"
    facts = desired.facts
    assert told("UNHEALTHY", UNHEALTHY) == (UNAVAILABLE, NO_REPLICA, True)


def test_a_model_on_two_devices_says_why_its_replicas_on_either_do_not_come_up_again(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    desired, table = Repository(tmp_path).read(), ModelTable()
    table.replace(desired, {})
    (deployment,) = desired.plan.deployments
    (model,) = deployment.models
    parts = [_Part(model, deployment, DeploymentState("UNHEALTHY", said)) for said in (NO_ROOM, UNHEALTHY)]
    cause = f"{NO_REPLICA}, but the last one failed to start: OSError: [Errno 28] there are 4096 bytes free in /dev/shm"
    for order in (parts, parts[::-1]):
        table.entry(model).loaded("", 0.0)
        StatusReader()._take(order, table)
        assert table.entry(model).reason == cause


def test_a_model_that_needs_less_from_now_on_says_no_more_what_it_needed(tmp_path: Path) -> None:
    write(tmp_path, "step", CPUS % "3")
    repository = Repository(tmp_path)
    desired, table = repository.read(), ModelTable()
    table.replace(desired, {})
    lost = {"step": {"v1": DeploymentState("UNHEALTHY", UNHEALTHY)}}
    smaller = replace(desired, facts=ClusterFacts((NodeFacts(2),)))
    StatusReader()._take_states(table, smaller, lost, {})
    assert table.models["step"].versions[1].reason == "a replica needs 3 CPUs, and no node has that much free"
    repository.configure("step", CPUS % "1")
    changed = repository.load(smaller, "step")
    table.replace(changed, {})
    StatusReader()._take_states(table, changed, lost, {})
    assert table.models["step"].versions[1].reason == NO_REPLICA


def test_the_room_that_packed_models_lack_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write(tmp_path, f"m{number}", PLACED % "packed")
    desired, table = Repository(tmp_path).read(), ModelTable()
    table.replace(desired, {})
    (deployment,) = desired.plan.deployments
    asked: list[ClusterFacts] = []

    def room(before: Plan, plan: Plan, facts: ClusterFacts) -> bool:
        asked.append(facts)
        return has_room(before, plan, facts)

    monkeypatch.setattr(status_reader, "has_room", room)
    small = replace(desired, facts=ClusterFacts((NodeFacts(0),)))
    lost = {deployment.app_name: {deployment.name: DeploymentState("UNHEALTHY", UNHEALTHY)}}
    StatusReader()._take_states(table, small, lost, {})
    reasons = {model.versions[1].reason for model in table.models.values()}
    assert (len(asked), reasons) == (1, {"a replica needs 0.05 CPUs, and no node has that much free"})


def test_a_model_that_had_no_replica_has_the_reason_why_none_starts_in_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "step", "")
    desired, table = Repository(tmp_path).read(), ModelTable()
    table.replace(desired, {})
    replicas: list[dict[str, Any]] = []

    async def answers(asked: Any, until_s: float) -> list[Any]:
        return replicas

    monkeypatch.setattr(status_reader, "handle_of", lambda name, app: SimpleNamespace(broadcast=lambda method: None))
    monkeypatch.setattr(status_reader, "answers_by", answers)

    def told(status: str, message: str) -> tuple[str, str]:
        states = {"step": {"v1": DeploymentState(status, message)}}
        monkeypatch.setattr(status_reader, "application_states", lambda: states)
        asyncio.run(reader.read(table, desired))
        return table.models["step"].versions[1].state, table.models["step"].versions[1].reason

    cause = f"{NO_REPLICA}, but the last one failed to start: OSError: [Errno 28] there are 4096 bytes free in /dev/shm"
    fails, reader = False, StatusReader(fails_to_start=lambda app, name, state: fails)
    assert told("HEALTHY", NO_ROOM) == (READY, "")
    fails = True
    assert told("HEALTHY", NO_ROOM) == (UNAVAILABLE, cause)
    replicas.append({"models": [["step", 1, "", 0.0, ""]]})
    assert told("HEALTHY", NO_ROOM) == (READY, "")
    replicas.clear()  # one that is busy does not answer in time
    assert told("HEALTHY", NO_ROOM) == (READY, "")


def test_a_version_serves_on_where_what_was_to_replace_its_replicas_failed(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    desired, table = Repository(tmp_path).read(), ModelTable()
    table.replace(desired, {})
    (deployment,) = desired.plan.deployments
    (model,) = deployment.models
    failed = DeploymentState("DEPLOY_FAILED", "The deployment failed. ModelLoadError: no weights")

    def told(*, serves: bool) -> tuple[str, str]:
        StatusReader()._take([_Part(model, deployment, failed, serves)], table)
        return table.entry(model).state, table.entry(model).reason

    assert told(serves=True) == (READY, "its instances on CPU failed to load: no weights")
    assert told(serves=False) == (UNAVAILABLE, "no weights")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ActorDiedError(), "its process died as it was loaded, as when native code crashes or memory runs out"),
        (
            ActorUnavailableError("The actor is temporarily unavailable: RpcError", bytes(16)),
            "its process was not to be reached as it was loaded, as when its node dies",
        ),
    ],
    ids=["its process", "its node"],
)
def test_a_model_that_is_lost_as_it_is_loaded_has_a_sentence_for_a_reason(error: Exception, said: str) -> None:
    assert status_reader._reason(f"{UNHEALTHY} Error:\n{error!r}") == said


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "The actor died because its node has died. Node Id: c402\n\tthe actor's node was terminated unexpectedly",
            "its node died as it was loaded",
        ),
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        ),
    ],
    ids=["its node", "its process"],
)
def test_a_model_that_is_lost_before_it_was_loaded_has_for_a_reason_why_and_not_that_it_never_ran(
    cause: str, said: str
) -> None:
    context = ActorDiedErrorContext(error_message=cause, never_started=True, actor_id=bytes(16))
    told = f"A replica failed to start with exception. Retrying. Error:\n{ActorDiedError(context)}"
    assert "never ran" in told
    assert status_reader._reason(told) == said


def test_a_load_during_which_a_replica_dies_has_a_sentence_for_a_reason() -> None:
    said = "a process that was to load it, or serves it, died or failed its health check meanwhile"
    assert status_reader._reason(UNHEALTHY) == said
    assert status_reader._UNWELL in inspect.getsource(deployment_state)


def test_a_deployment_that_serve_names_no_replica_of_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle:
        def broadcast(self, method: str) -> Any:
            raise DeploymentUnavailableError(DeploymentID("models", "packed"))

    monkeypatch.setattr(status_reader, "handle_of", lambda name, app: Handle())
    reader = StatusReader()
    assert asyncio.run(reader._ask(("packed", "models"), in_part=False, must_answer=True)) == []
    assert reader._replaced == {("packed", "models")}


def test_what_was_told_of_another_plan_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "step", "")
    desired, table, reader = Repository(tmp_path).read(), ModelTable(), StatusReader()
    (deployment,) = desired.plan.deployments
    running = {deployment.app_name: {deployment.name: DeploymentState("HEALTHY", "")}}
    monkeypatch.setattr(status_reader, "application_states", lambda: running)

    def state() -> str:
        return table.models["step"].versions[1].state

    table.replace(replace(desired, plan=replace(desired.plan)), {})
    assert (asyncio.run(reader.read(table, desired)), state()) == ([], LOADING)
    table.replace(desired, {})
    assert (asyncio.run(reader.read(table, desired)), state()) == ([], READY)


def test_a_trial_that_has_succeeded_ends_though_other_commands_come_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a stream of loads there is another plan at the end of each look: the first would wait for the last."""
    for name in ("first", "second"):
        write(tmp_path, name, "")
    repository, table, reader = Repository(tmp_path, at_start=("none",)), ModelTable(), StatusReader()
    one = repository.load(repository.read(), "first")
    (trial,) = one.trials
    running: dict[str, Any] = {}
    monkeypatch.setattr(status_reader, "application_states", lambda: running)

    def ended(status: str) -> list[Verdict]:
        for deployment in one.plan.deployments:
            running[deployment.app_name] = {deployment.name: DeploymentState(status, "")}
        return asyncio.run(reader.read(table, one))

    async def serves(*asked: Any, **how: Any) -> list[list[Any]]:
        (model,) = one.plan.models
        return [[["first", 1, "", 0.0, HostedModel.of(model, Packages()).to_dict()["digest"]]]]

    monkeypatch.setattr(reader, "_ask", serves)
    table.replace(repository.load(one, "second"), {})
    assert ended("UPDATING") == []
    assert ended("DEPLOY_FAILED") == [], "the next look says so, of what is there then"
    assert ended("HEALTHY") == [Verdict(trial)]
    assert table.models["first"].versions[1].state == LOADING, "its end says so"


def test_a_trial_does_not_end_before_all_replicas_have_told_what_they_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve leaves one that it hands a change out of its list, and calls them healthy a moment before."""
    write(tmp_path, "first", 'parameters { key: "eagleray.replicas" value { string_value: "3" } }')
    repository, table, reader = Repository(tmp_path, at_start=("none",)), ModelTable(), StatusReader()
    desired = repository.load(repository.read(), "first")
    table.replace(desired, {})
    (deployment,), (model,), (trial,) = desired.plan.deployments, desired.plan.models, desired.trials
    row = ["first", 1, "", 0.0, HostedModel.of(model, Packages()).to_dict()["digest"]]
    replicas: list[list[Any]] = []

    async def serves(*asked: Any, **how: Any) -> list[list[Any]]:
        return replicas

    def ended(status: str, count: int) -> list[Verdict]:
        replicas[:] = [[row]] * count
        running = {deployment.app_name: {deployment.name: DeploymentState(status, "")}}
        monkeypatch.setattr(status_reader, "application_states", lambda: running)
        return asyncio.run(reader.read(table, desired))

    monkeypatch.setattr(reader, "_ask", serves)
    assert ended("HEALTHY", 2) == []
    assert ended("UPSCALING", 2) == [Verdict(trial)], "those that there is no room for hold up no load"
    assert ended("HEALTHY", 3) == [Verdict(trial)]


def test_a_deployment_that_finds_no_room_beside_what_ran_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "step", "")
    desired, table = deployed(tmp_path, "packed", deployed(tmp_path, "isolated")), ModelTable()
    table.replace(desired, {})
    message = "Deployment 'models' has 1 replicas that have taken more than 30s to be scheduled. This may be due to"
    assert serve_internals._UNSCHEDULED in message
    assert serve_internals._UNSCHEDULED in inspect.getsource(deployment_state)

    def unavailable(name: str, app: str) -> Any:
        raise DeploymentUnavailableError(DeploymentID(name, app))

    monkeypatch.setattr(status_reader, "handle_of", unavailable)
    monkeypatch.setattr(status_reader, "_STALE_S", -1.0)

    def verdicts(message: str) -> list[Verdict] | None:
        places = {("step", "v1"): ("HEALTHY", ""), ("eagleray-packed", "models"): ("UPDATING", message)}
        states = {app: {name: DeploymentState(*state)} for (app, name), state in places.items()}
        monkeypatch.setattr(status_reader, "application_states", lambda: states)
        return asyncio.run(StatusReader().read(table, desired))

    (trial,) = desired.trials
    assert verdicts("") == []
    assert verdicts(message) == [Verdict(trial, lacks_room=True)]
    desired = replace(desired, trials=(replace(trial, makes_room=False),))
    assert verdicts(message) == []


def test_a_model_for_whose_replica_there_is_no_room_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has asked for it hears so; what nobody has asked for waits on, and all others are known to be tried."""
    write(tmp_path, "step", 'parameters { key: "eagleray.num_cpus" value { string_value: "0.6" } }')
    repository = Repository(tmp_path, at_start=("none",))
    before, table = repository.read(), ModelTable()
    started = Repository(tmp_path).read()
    monkeypatch.setattr(status_reader, "_STALE_S", -1.0)

    def told(desired: DesiredState, message: str) -> list[Verdict]:
        states = {"step": {"v1": DeploymentState("UPDATING", message)}}
        monkeypatch.setattr(status_reader, "application_states", lambda: states)
        return asyncio.run(StatusReader().read(table, desired))

    reason = "a replica needs 0.6 CPUs, and no node has that much free"
    table.replace(started, {})
    entry = table.models["step"].versions[1]
    assert told(started, "") == [] and entry.state == LOADING and not table.settled
    assert told(started, WAITS_FOR_ROOM) == []
    assert (entry.state, entry.reason, entry.failed, table.settled) == (UNAVAILABLE, reason, False, True)
    assert table.hindered == {("step", 1)}, "a load tries it again, and says what became of that"

    polled = repository.load(before, "step")
    asked = replace(polled, trials=(replace(polled.trials[0], command="id"),))
    for desired, verdicts in ((polled, []), (asked, [Verdict(asked.trials[0], {"step": {1: reason}})])):
        table.replace(desired, {})
        assert told(desired, WAITS_FOR_ROOM) == verdicts
    repository.configure("step", 'parameters { key: "eagleray.num_cpus" value { string_value: "0.7" } }')
    anew = repository.load(repository.commit(polled), "step")
    asked_anew = replace(anew, trials=(replace(anew.trials[0], command="id"),))
    table.replace(asked_anew, {})
    assert told(asked_anew, WAITS_FOR_ROOM) == [], "what it replaces goes first"
    monkeypatch.setattr(status_reader, "_REPLACED_S", -1.0)
    assert told(asked_anew, WAITS_FOR_ROOM) == [
        Verdict(asked_anew.trials[0], {"step": {1: reason.replace("0.6", "0.7")}})
    ]
    monkeypatch.setattr(ModelTable, "unloading", True)
    assert told(asked, WAITS_FOR_ROOM) == [], "what ends makes room for it"


def test_packed_replicas_have_told_what_they_load_when_serve_changes_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "step", "")
    desired, table = deployed(tmp_path, "packed"), ModelTable()
    table.replace(desired, {})
    replicas: list[Any] = [{"models": []}]

    async def answers(asked: Any, until_s: float) -> list[Any]:
        return replicas

    monkeypatch.setattr(status_reader, "handle_of", lambda name, app: SimpleNamespace(broadcast=lambda method: None))
    monkeypatch.setattr(status_reader, "answers_by", answers)
    reader = StatusReader()

    def told(status: str) -> Set[str]:
        states = {"eagleray-packed": {"models": DeploymentState(status, "")}}
        monkeypatch.setattr(status_reader, "application_states", lambda: states)
        asyncio.run(reader.read(table, desired))
        return reader.told

    assert told("UPDATING") == told("UNHEALTHY") == set()
    assert told("HEALTHY") == {"eagleray-packed"}
    replicas.append(TimeoutError())
    with pytest.raises(TimeoutError):
        told("HEALTHY")
    replicas[:] = []
    assert told("HEALTHY") == set()
