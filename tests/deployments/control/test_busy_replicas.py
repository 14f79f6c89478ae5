"""Whether the replicas of a deployment have something under way, as they say, or do not."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ray.exceptions import RayActorError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from deployments.control import busy_replicas
from deployments.control.busy_replicas import BusyReplicas

PLACE, OTHER, INGRESS = ("m", "v1"), ("other", "v1"), ("eagleray", "Ingress")


class Cluster:
    """What replicas of deployments answer, in turn; an exception in place of a list is Serve's own.

    `counts` says how many of each Serve has.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[list[Any] | Exception]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.let_go: list[tuple[str, str]] = []
        self.question = "is_busy"
        self.patience_s: list[float] = []

    def handle_of(self, name: str, app: str) -> Any:
        return Handle(self.answers[app, name], self.question)

    def note_let_go(self, app: str, name: str) -> None:
        self.let_go.append((app, name))


class Handle:
    def __init__(self, answers: list[list[Any] | Exception], question: str) -> None:
        self._answers = answers
        self._question = question

    def broadcast(self, method: str) -> list[Any]:
        assert method == self._question
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    async def answers_by(asked: list[Any], until_s: float) -> list[Any]:
        found.patience_s.append(until_s - asyncio.get_running_loop().time())
        return asked

    found = Cluster()
    monkeypatch.setattr(busy_replicas, "handle_of", found.handle_of)
    monkeypatch.setattr(busy_replicas, "let_go_of", found.note_let_go)
    monkeypatch.setattr(busy_replicas, "answers_by", answers_by)
    monkeypatch.setattr(busy_replicas, "replica_counts", lambda: found.counts)
    monkeypatch.setattr(busy_replicas, "_THERE_S", 0.2)
    monkeypatch.setattr(busy_replicas, "_LOOK_S", 0.01)
    return found


@pytest.fixture
def replicas() -> Iterator[BusyReplicas]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield BusyReplicas(loop, INGRESS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


DIED = RayActorError(error_msg="it has died")
NOBODY = DeploymentUnavailableError(DeploymentID("v1", "m"))


@pytest.mark.parametrize(
    ("answers", "expected", "count"),
    [
        ([[False, False]], 2, None),
        ([[False, True, False]], 3, 3),
        ([[TimeoutError(), False]], 2, 2),
        ([[DIED]], 1, None),
        ([[DIED, True]], 2, 2),
        ([[], NOBODY, [True]], 1, 1),
        ([NOBODY], 1, 0),
        ([TimeoutError()], 1, 0),
        ([[False], [False, True]], 2, 2),
        ([[True], [True, False]], 2, 2),
        ([[False]], 2, 0),
        ([[True]], 2, 2),
        ([NOBODY], 0, None),
    ],
    ids=[
        "idle",
        "one is busy",
        "one stands still",
        "died",
        "one died",
        "told just now",
        "nobody",
        "not told who",
        "the busy one is told just now",
        "the other one is told just now",
        "only an idle one is there",
        "only a busy one is there",
        "scaled to none",
    ],
)
def test_a_deployment_is_busy_as_its_replicas_are(
    cluster: Cluster, replicas: BusyReplicas, answers: list[Any], expected: int, count: int | None
) -> None:
    cluster.answers, cluster.counts = {PLACE: answers, OTHER: [[False]]}, {PLACE: expected}
    assert replicas.count({PLACE: expected, OTHER: 1}) == ({} if count is None else {PLACE: count})


@pytest.mark.parametrize(
    ("answers", "there", "busy"),
    [([[False]], 1, {}), ([[True]], 1, {PLACE: 2}), ([[False]], 2, {PLACE: 0}), ([NOBODY], 0, {})],
    ids=["an idle one", "a busy one", "one more is told just now", "nobody"],
)
def test_a_replica_that_has_gone_is_not_waited_for(
    cluster: Cluster, replicas: BusyReplicas, answers: list[Any], there: int, busy: dict[tuple[str, str], int]
) -> None:
    """Its node has died, say, and no other has room for one in its place."""
    cluster.answers, cluster.counts = {PLACE: answers}, {PLACE: there}
    assert replicas.count({PLACE: 2}) == busy


def test_what_stands_still_is_waited_for_once(cluster: Cluster, replicas: BusyReplicas) -> None:
    """Commands for other models wait for the answers, each for several of them in turn."""
    cluster.answers = {PLACE: [[TimeoutError(), False], [TimeoutError(), False], [True, False], [True, False]]}
    for _ in range(4):
        assert replicas.count({PLACE: 2}) == {PLACE: 2}
    assert cluster.patience_s == pytest.approx([2.0, 0.2, 0.2, 2.0], abs=0.1)


def test_what_is_busy_no_longer_is_let_go_of(cluster: Cluster, replicas: BusyReplicas) -> None:
    """Else this process would ask Serve for it for ever."""
    cluster.answers = {PLACE: [[True], [True], [False]], OTHER: [[False]]}
    replicas.count({PLACE: 1, OTHER: 1})
    assert cluster.let_go == [OTHER]
    replicas.count({PLACE: 1})
    assert cluster.let_go == [OTHER]
    replicas.count({PLACE: 1})
    assert cluster.let_go == [OTHER, PLACE]
    replicas.count({})
    assert cluster.let_go == [OTHER, PLACE]


def test_what_is_asked_about_no_longer_is_let_go_of(cluster: Cluster, replicas: BusyReplicas) -> None:
    cluster.answers = {PLACE: [[True]]}
    replicas.count({PLACE: 1})
    replicas.count({})
    assert cluster.let_go == [PLACE]


def test_what_answers_what_it_has_taken_is_asked_until_it_has(cluster: Cluster, replicas: BusyReplicas) -> None:
    """A replica that says nothing may be about to; one that has died answers nobody."""
    cluster.question = "is_answering"
    cluster.answers = {PLACE: [[False, True], [TimeoutError()], [RayActorError()]], OTHER: [[False, False]]}
    assert replicas.answering([PLACE, OTHER]) == {PLACE} and cluster.let_go == [OTHER]
    assert replicas.answering([PLACE]) == {PLACE} and cluster.let_go == [OTHER]
    assert replicas.answering([PLACE]) == set() and cluster.let_go == [OTHER, PLACE]
    assert replicas.answering([]) == set()


def test_the_ingresses_are_asked_and_not_let_go_of(cluster: Cluster, replicas: BusyReplicas) -> None:
    cluster.question = "is_answering"
    cluster.answers = {INGRESS: [[False, True], [TimeoutError()], [TimeoutError()], [False]]}
    found = [replicas.answering([INGRESS]) for _ in range(4)]
    assert found == [{INGRESS}, {INGRESS}, {INGRESS}, set()] and cluster.let_go == []
    assert cluster.patience_s == pytest.approx([2.0, 2.0, 0.2, 0.2], abs=0.1)
