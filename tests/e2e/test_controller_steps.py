"""The controller dies at every step of everything that it is told, and nobody who asks the models notices.

A step is what others see of it or what outlives it: a value stored, an application deployed or deleted, a change
published or told, a command answered. `make soak` walks through all of them; else a few are taken.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.controller_steps.asking import Addresses
from tests.controller_steps.bystanders import write_bystanders
from tests.controller_steps.cluster import FAILING, Cluster, X, asked_beside, parameter, write
from tests.controller_steps.model_life import loads, moves
from tests.controller_steps.operations import Operation
from tests.controller_steps.steps import Steps
from tests.hostile.watch import grpc_address
from tests.repeating import asking
from tests.serving import Client, Server, wait_until

CAMPAIGN = "FAULTS" in os.environ
NUMBERS = [int(number) for number in os.environ.get("STEP_NUMBERS", "").split()]
campaign = pytest.mark.skipif(not CAMPAIGN, reason="takes minutes: make soak")
walks = pytest.mark.timeout(3600)

FLAGS = ("--num-cpus", "4", "--no-dashboard", "--ingresses-per-node", "2", "--health-check-period-s", "0.5")
EXPLICIT = ("--model-control-mode", "explicit", "--load-model", "doubles", "--load-model", "shared")
EXPLICIT += ("--load-model", "beside_*")
POLL_S, QUIET_S = 0.5, 0.5
POLL = ("--model-control-mode", "poll", "--repository-poll-secs", str(POLL_S), "--repository-quiet-secs", str(QUIET_S))


def start(repository: Path, folder: Path, *flags: str) -> Iterator[Cluster]:
    steps = Steps(folder)
    bystanders = write_bystanders(repository)
    server = Server(repository, folder / "log", *FLAGS, *flags, env=steps.env())
    try:
        server.wait_ready()
        addresses = Addresses(server.address, grpc_address(server.log()))
        cluster = Cluster(addresses, repository, server.descendants, steps, bystanders)
        with asked_beside(cluster):
            yield cluster
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("repository")
    for version in (1, 2, 3):
        write(root, "shared", version, version, "version_policy { all {} }" + parameter("placement", "packed"))
    (root / "shared/3/model.py").write_text(FAILING)
    yield from start(root, tmp_path_factory.mktemp("log"), *EXPLICIT)


@pytest.fixture(scope="module")
def polled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("polled")
    write(root, "changes", 1)
    yield from start(root, tmp_path_factory.mktemp("polled-log"), *POLL)


@walks
@campaign
@pytest.mark.parametrize("placement", ["isolated", "packed", "embedded"])
def test_through_all_that_can_happen_to_a_model(explicit: Cluster, placement: str) -> None:
    explicit.walk.through(loads(explicit, placement), NUMBERS)
    assert explicit.walk.walked.wrong == []


@walks
@campaign
def test_through_moves(explicit: Cluster) -> None:
    explicit.walk.through(moves(explicit), NUMBERS)
    assert explicit.walk.walked.wrong == []


def traffic(cluster: Cluster) -> list[Operation]:
    """Weights, a shadow, a canary that is good and one that is not, of a model of three versions."""

    def change(**given: Any) -> Callable[[], None]:
        return lambda: cluster.control("shared", "traffic", given)

    def shows(**wanted: Any) -> Callable[[], bool]:
        def look() -> bool:
            found = cluster.get("/v2/repository/models/shared/traffic").json
            state = (found["canary"] or {}).get("state")
            return all((state if name == "canary" else found[name]) == value for name, value in wanted.items())

        return look

    rules = {"steps": [30, 100], "interval_s": 0.3, "min_requests": 5}
    good, bad = {"version": 2, **rules}, {"version": 3, "max_error_rate": 0.1, **rules}
    given = {"model": "shared"}
    return [
        Operation(
            "weights",
            change(weights={"1": 1}),
            shows(shares={"1": 1.0}, shadow={}),
            **given,
            before={1, 2},
            after={1},
            last={1},
        ),
        Operation(
            "shadow",
            change(shadow={"2": 50}),
            shows(shares={"1": 1.0}, shadow={"2": 50.0}),
            **given,
            before={1},
            after={1},
            last={1},
        ),
        Operation(
            "canary",
            change(canary=good),
            shows(canary="succeeded", shares={"2": 1.0}),
            **given,
            before={1},
            after={1, 2},
            last={2},
        ),
        Operation(
            "canary that is rolled back",
            change(canary=bad),
            shows(canary="rolled back", shares={"2": 1.0}),
            **given,
            before={2},
            after={2},
            last={2},
            failure="no good",
        ),
    ]


def repositories(cluster: Cluster, root: Path) -> list[Operation]:
    """A repository comes, a model of it, and both go."""
    write(root, "later", 7, config=parameter("placement", "packed"))

    def tell(verb: str) -> Callable[[], None]:
        def post() -> None:
            answer = cluster.post(f"/v2/repository/{verb}", {"repository": str(root)})
            assert answer.status == 200, answer.body

        return post

    def known() -> bool:
        answer = cluster.get("/v2/repository/registered")
        return answer.status == 200 and str(root) in str(answer.json)

    def unknown() -> bool:
        answer = cluster.get("/v2/repository/registered")
        return answer.status == 200 and str(root) not in str(answer.json)

    return [
        Operation("register", tell("register"), known),
        Operation(
            "load of another repository",
            lambda: cluster.control("later", "load"),
            lambda: cluster.ready("later") == ["1"] and cluster.answer("later") == 7,
            brings=("later",),
        ),
        Operation(
            "unload of another repository",
            lambda: cluster.control("later", "unload"),
            lambda: cluster.ready("later") == [] and cluster.answer("later") == -404,
        ),
        Operation("unregister", tell("unregister"), unknown),
    ]


def settings(cluster: Cluster) -> list[Operation]:
    """Log and trace settings; one that the controller did not live to take is refused, and may be sent again."""

    def change(path: str, name: str, value: object) -> Operation:
        def tell() -> None:
            answer = cluster.post(path, {name: value})
            if answer.status == 503:
                answer = wait_until(
                    lambda: again if (again := cluster.post(path, {name: value})).status == 200 else None, name
                )
            assert answer.status == 200, answer.body

        return Operation(f"{name} is {value}", tell, lambda: str(cluster.get(path).json[name]) == str(value))

    return [
        change(path, name, value)
        for value in (3, 2)
        for path, name in (("/v2/logging", "log_verbose_level"), ("/v2/trace/setting", "trace_rate"))
    ]


class Rising:
    """Clients of a model that scales, whose number a test says."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = ExitStack()
        self.wrong: list[bytes] = []

    def rise(self, count: int = 8) -> None:
        self._clients.enter_context(asking(self._cluster, self._ask, count))

    def fall(self) -> None:
        self._clients.close()

    def _ask(self, client: Client) -> None:
        answer = client.infer("scales", X)
        if answer.status != 200:
            self.wrong.append(answer.body)


def scaling(cluster: Cluster, rising: Rising) -> list[Operation]:
    """From none to two replicas with the load, back to none, and awake again."""
    rules = {"min_replicas": 0, "max_replicas": 2, "target_ongoing_requests": 2, "downscale_delay_s": 1}
    write(cluster.root, "scales", 1, config="".join(parameter(f"autoscaling.{key}", rules[key]) for key in rules))

    def replicas(count: int) -> Callable[[], bool]:
        return lambda: cluster.ready("scales") == ["1"] and cluster.replicas("scales") == count

    def ask() -> None:
        assert cluster.answer("scales") == 1

    return [
        Operation(
            "load of a model that scales", lambda: cluster.control("scales", "load"), replicas(0), brings=("scales",)
        ),
        Operation("two replicas", rising.rise, replicas(2)),
        Operation("no replica", rising.fall, replicas(0)),
        Operation("one request", ask, replicas(0)),
        Operation(
            "unload of a model that scales",
            lambda: cluster.control("scales", "unload"),
            lambda: cluster.ready("scales") == [] and cluster.replicas("scales") == 0,
        ),
    ]


def polls(cluster: Cluster) -> list[Operation]:
    """What is done to a polled repository."""
    root = cluster.root
    specific = "version_policy { specific { versions: 1 } }"

    def writes(tag: object, version: int = 1, config: str = "") -> Callable[[], None]:
        return lambda: write(root, "changes", tag, version, config)

    def ready(name: str, *versions: str) -> Callable[[], bool]:
        return lambda: cluster.ready(name) == [*versions]

    def leave() -> None:
        shutil.rmtree(root / "comes")

    def only_first() -> None:
        shutil.rmtree(root / "changes/2")
        writes(1)()

    given = {"model": "changes"}
    both = {1, 2, 5}
    return [
        Operation("change of files", writes(2), ready("changes", "1"), **given, before=both, after=both, last={2}),
        Operation(
            "version that is added",
            writes(5, 2, "version_policy { all {} }"),
            ready("changes", "1", "2"),
            **given,
            before=both,
            after=both,
            last={5},
        ),
        Operation(
            "policy that changes",
            writes(5, 2, specific),
            ready("changes", "1"),
            **given,
            before=both,
            after=both,
            last={2},
        ),
        Operation(
            "version that is removed", only_first, ready("changes", "1"), **given, before=both, after=both, last={1}
        ),
        Operation("model that is added", lambda: write(root, "comes", 7), ready("comes", "1"), brings=("comes",)),
        Operation("model that is removed", leave, ready("comes")),
    ]


@walks
@campaign
def test_through_traffic(explicit: Cluster) -> None:
    explicit.control("shared", "traffic", {"weights": {"1": 1}})  # the highest version is no good
    explicit.walk.through(traffic(explicit), NUMBERS)
    assert explicit.walk.walked.wrong == []


@walks
@campaign
def test_through_repositories_and_settings(explicit: Cluster, tmp_path: Path) -> None:
    explicit.walk.through([*repositories(explicit, tmp_path), *settings(explicit)], NUMBERS)
    assert explicit.walk.walked.wrong == []


@walks
@campaign
def test_through_the_numbers_of_replicas(explicit: Cluster) -> None:
    rising = Rising(explicit)
    explicit.walk.through(scaling(explicit, rising), NUMBERS)
    assert explicit.walk.walked.wrong == [] and rising.wrong == []


@walks
@campaign
def test_through_changes_of_a_polled_repository(polled: Cluster) -> None:
    polled.walk.through(polls(polled), NUMBERS)
    assert polled.walk.walked.wrong == []


def test_at_some_steps_of_a_models_life(explicit: Cluster) -> None:
    """A successor dies on its way, too."""
    first, second, *_, last = loads(explicit, "packed")
    for operation, kills in (
        (first, [(2, "before")]),
        (second, [(1, "after"), (2, "before")]),
        (last, [(1, "after")]),
    ):
        assert len(explicit.walk.do(operation, kills)) == len(kills)
    assert explicit.walk.walked.wrong == []
