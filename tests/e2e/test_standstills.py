"""Processes of a server stand still for a while and go on, while clients ask: nothing fails, and nobody has died."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.checked_load import CheckedLoad, write_doubles
from tests.e2e.test_faults_under_traffic import TWO, step, total
from tests.repeating import asking
from tests.repositories import write_sequence_models
from tests.serving import Client, Server, tensor, title_of, wait_until

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make soak")

STILL_S = 12.0
RATE = 50
MODELS = ("doubles", "lone", "processes")
ISOLATED = 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }'
PROCESSES = "instance_group [ { kind: KIND_CPU count: 2 } ]"
WHO = {
    "the ingress": ("ray::ServeReplica:eagleray:Ingress",),
    "the only replica": ("ray::ServeReplica:lone:",),
    "both replicas": ("ray::ServeReplica:doubles:",),
    "processes of a model": ("model_process",),
    "ingress and replica": ("ray::ServeReplica:eagleray:Ingress", "ray::ServeReplica:lone:"),
    "controllers": ("ray::ServeReplica:eagleray:RepositoryController", "ray::ServeController"),
    "Ray on the node": ("raylet/raylet",),
    "all": ("ray::", "raylet/raylet", "gcs_server", "model_process"),
}
"""What stands in the command lines of those that stand still."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root, all_sequences = tmp_path_factory.mktemp("still"), tmp_path_factory.mktemp("sequences")
    write_doubles(root, "doubles", ISOLATED + TWO)
    write_doubles(root, "lone", ISOLATED)
    write_doubles(root, "processes", ISOLATED + PROCESSES)
    write_sequence_models(all_sequences)
    (all_sequences / "sequence_sums").rename(root / "sums")
    config = root / "sums/config.pbtxt"
    config.write_text(config.read_text().replace("60000000", "1000000") + ISOLATED)
    flags = ("--num-cpus", "8", "--no-dashboard", "--ingresses-per-node", "1")
    started = Server(root, tmp_path_factory.mktemp("still-log") / "log", *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@contextmanager
def still(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop processes for as long as the block lasts."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def found(server: Server, parts: tuple[str, ...]) -> list[psutil.Process]:
    return [each for each in server.descendants() if any(part in title_of(each) for part in parts)]


@pytest.mark.parametrize("parts", WHO.values(), ids=WHO)
def test_processes_stand_still(server: Server, parts: tuple[str, ...]) -> None:
    processes = found(server, parts)
    before = {each.pid for each in found(server, ("ray::ServeReplica", "ray::ServeController", "model_process"))}
    assert processes
    port = int(server.address.rpartition(":")[2])
    with ExitStack() as stack:
        outcomes = {name: stack.enter_context(CheckedLoad(port, name, RATE).running()) for name in MODELS}
        wait_until(lambda: all(len(each.answered) > RATE for each in outcomes.values()), "a second of answers")
        with still(processes):
            over_s = time.monotonic() + STILL_S
            wait_until(lambda: time.monotonic() > over_s, "the time", 2 * STILL_S)
        counts = {name: len(each.answered) for name, each in outcomes.items()}
        wait_until(
            lambda: all(len(each.answered) > counts[name] + 5 * RATE for name, each in outcomes.items()),
            "seconds of answers afterwards",
        )
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
        assert not outcome.wrong and not outcome.refused and not outcome.reconnects
        assert outcome.sent == len(outcome.answered)
    after = {each.pid for each in found(server, ("ray::ServeReplica", "ray::ServeController", "model_process"))}
    assert before <= after


def test_a_sequence_whose_replica_stands_still_goes_on(server: Server) -> None:
    (replica,) = found(server, ("ray::ServeReplica:sums:",))
    sums = [total(step(server, "sums", 7, 1, sequence_start=True))]

    def ask(client: Client) -> None:
        given = tensor("INPUT", "INT32", [1, 1], [1])
        sums.append(total(client.infer("sums", given, parameters={"sequence_id": 7})))

    with asking(server, ask, pause_s=0.3):
        wait_until(lambda: len(sums) > 3, "some answers")
        replica.suspend()
        over_s = time.monotonic() + 5.0
        wait_until(lambda: time.monotonic() > over_s, "the time")
        replica.resume()
        count = len(sums)
        wait_until(lambda: len(sums) > count + 5, "answers afterwards")
    assert sums == list(range(1, len(sums) + 1))
