"""Poll mode: what is done to the repository happens to the models, and nothing is loaded half."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checked_load import CheckedLoad, write_doubles
from tests.e2e.tagged_models import Asking, ask, tag, write_tagged
from tests.serving import Server, wait_until

POLL_S, QUIET_S = 0.5, 1.0
FLAGS = (
    *("--model-control-mode", "poll", "--repository-poll-secs", str(POLL_S), "--repository-quiet-secs", str(QUIET_S)),
    *("--num-cpus", "4", "--no-dashboard", "--placement", "packed"),
)
ROUNDS = int(os.environ.get("SLOW_COPY_ROUNDS", "1"))
"""`make soak` copies more."""
STEPS_S = [float(step) for step in os.environ.get("CONTROLLER_DIES_AFTER_S", str(QUIET_S + POLL_S / 2)).split()]
"""When the controller dies after files were changed; `make soak` has more of them."""
COPIES = 8
PIECES = 6
PAUSE_S = 0.4
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("polled")
    write_tagged(root, "stays", "1")
    write_doubles(root, "doubles")
    return root


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another repository, empty at first."""
    return tmp_path_factory.mktemp("polled_too")


@pytest.fixture(scope="module")
def server(repository: Path, second: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("polled-log") / "log"
    more = ("--model-repository", str(second), "--log-file", str(log.with_name("all")))
    started = Server(repository, log, *more, *FLAGS)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def answers(server: Server, name: str) -> int:
    """Return what a model answers, 0 when it does not."""
    with server.client() as client:
        answer = ask(client, name)
        return tag(answer) if answer.status == 200 else 0


def index(server: Server) -> dict[str, str]:
    """Return the names in the index, each with the reason for the state of its last version, if there is one."""
    return {row["name"]: row.get("reason", "") for row in server.post("/v2/repository/index").json}


def test_models_follow_the_repository(server: Server, repository: Path) -> None:
    write_tagged(repository, "added", "1")
    wait_until(lambda: answers(server, "added") == 1, "the model that was added")
    with Asking(server, "added", count=2).running() as asking:
        write_tagged(repository, "added", "2")
        wait_until(lambda: answers(server, "added") == 2, "the model that was changed")
        write_tagged(repository, "added", "3", version=3)
        wait_until(lambda: answers(server, "added") == 3, "the version that was added")
        write_tagged(repository, "added", "nonesuch", version=4)
        wait_until(lambda: "nonesuch" in server.log() or len(asking.answers) > 2000, "an attempt at what is broken")
        assert answers(server, "added") == 3
        wait_until(lambda: "nonesuch" in server.states("added").get("4", ("", ""))[1], "why the version is broken")
        assert server.states("added")["3"] == ("READY", "")
        assert server.get("/v2/health/ready").status == 200, "what served before serves on"
        shutil.rmtree(repository / "added/4")
        wait_until(lambda: "4" not in server.states("added"), "the end of what is said of it")
    asking.assert_served()
    shutil.rmtree(repository / "added")
    wait_until(lambda: "added" not in index(server), "the end of the model that was removed")
    assert server.states("stays") == {"1": ("READY", "")}
    assert server.get("/v2/health/ready").status == 200


def test_a_model_serves_on_when_a_second_repository_gets_its_name(
    server: Server, repository: Path, second: Path
) -> None:
    with Asking(server, "stays", count=2).running() as asking:
        write_tagged(second, "stays", "9")
        log, serves_on = server.log_path.with_name("all"), "'stays' serves on as it is: model appears in two or more"
        wait_until(lambda: serves_on in log.read_text(), "the second of the name is seen")
        assert server.states("stays") == {"1": ("READY", "")}
        assert answers(server, "stays") == 1
        shutil.rmtree(second / "stays")
        write_tagged(repository, "stays", "2")
        wait_until(lambda: answers(server, "stays") == 2, "a change of the only one that is left")
        write_tagged(repository, "stays", "1")
        wait_until(lambda: answers(server, "stays") == 1, "what it was")
    asking.assert_served()


def test_a_model_that_never_loaded_is_forgotten_when_it_is_removed(server: Server, repository: Path) -> None:
    """Else the server would not be ready any more."""
    write_tagged(repository, "broken", "nonesuch")
    (repository / "malformed/1").mkdir(parents=True)
    (repository / "malformed/config.pbtxt").write_text("backend {")

    wait_until(lambda: index(server).get("broken") and index(server).get("malformed"), "both are tried")
    assert server.get("/v2/health/ready").status == 400
    for name in ("broken", "malformed"):
        shutil.rmtree(repository / name)
    wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready without them")
    assert index(server).keys().isdisjoint({"broken", "malformed"})


@pytest.mark.parametrize("action", ["load", "unload"])
def test_clients_have_no_say(server: Server, action: str) -> None:
    answer = server.post(f"/v2/repository/models/stays/{action}")
    assert (answer.status, answer.error) == (503, NO_CONTROL)


def copy_slowly(root: Path, name: str, pause: threading.Event) -> None:
    """Write a model piece by piece; every piece alone would load, and answer with another number."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    write_tagged(root, name, "0")
    for number in range(1, PIECES + 1):
        pause.wait(PAUSE_S)
        with (folder / "model.py").open("a") as file:
            file.write(f"\nTAG = {number}\n")


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_model_that_is_copied_slowly_is_never_loaded_half(server: Server, repository: Path, number: int) -> None:
    """Nor does it cost those who ask another one 200 times a second an answer."""
    names = [f"copied_{number}_{copy}" for copy in range(COPIES)]
    pause = threading.Event()
    threads = [threading.Thread(target=copy_slowly, args=(repository, name, pause)) for name in names]
    for thread in threads:
        thread.start()
    seen: set[str] = set()
    load = CheckedLoad(int(server.address.rpartition(":")[2]), "doubles", 200)
    with load.running() as outcome, server.client() as client:
        while any(thread.is_alive() for thread in threads):
            seen.update(row["name"] for row in server.post("/v2/repository/index").json)
        for thread in threads:
            thread.join(30)
        assert seen.isdisjoint(names)
        for name in names:
            wait_until(lambda name=name: ask(client, name).status == 200, f"{name} is loaded")
            assert tag(ask(client, name)) == PIECES
    print(f"{COPIES} models that are copied slowly: {outcome}")
    assert outcome.sent == len(outcome.answered), outcome
    for name in names:
        shutil.rmtree(repository / name)


@pytest.mark.parametrize("after_s", STEPS_S)
def test_a_change_is_followed_though_the_controller_dies_on_the_way(
    server: Server, repository: Path, after_s: float
) -> None:
    write_tagged(repository, "survives", "1")
    write_tagged(repository, "leaves", "1")
    for name in ("survives", "leaves"):
        wait_until(lambda name=name: answers(server, name) == 1, f"{name} is loaded")
    with Asking(server, "survives", count=1).running() as asking:
        write_tagged(repository, "survives", "2")
        shutil.rmtree(repository / "leaves")
        timer = threading.Timer(after_s, server.kill_controller)
        timer.start()
        wait_until(lambda: answers(server, "survives") == 2, "the change", timeout_s=60)
        timer.join(30)
    asking.assert_served()
    wait_until(lambda: "leaves" not in index(server), "the end of the model that was removed")
    tags = [tag(answer) for answer in asking.answers]
    assert tags == sorted(tags)
