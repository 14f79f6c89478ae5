"""Faults of models, files, clients and the machine, while clients ask 200 times a second for what has no fault.

`test_fault_campaign.py` has those of processes and nodes, on a cluster; `docs/faults.md` says which fault is in which
test. One server for all.
"""

import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.checked_load import CheckedLoad, Outcome, write_doubles
from tests.e2e.test_faults import state
from tests.repositories import write_small_models
from tests.serving import Answer, Server, tensor, title_of, wait_until

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make soak")

RATE = 200
LOADED = ("doubles", "lone", "simple")
FLAGS = ("--model-control-mode", "explicit", "--num-cpus", "8", "--no-dashboard", "--max-batch-duration-s", "3")
FLAGS += ("--ingresses-per-node", "1")
TWO = 'parameters { key: "eagleray.replicas" value { string_value: "2" } }'
EXITS, SEGFAULTS, KILLED, HANGS, LOSES_GPU = -1, -2, -3, -4, -5
TOLD = f"""
import ctypes, signal
if x == {EXITS}:
    os._exit(1)
if x == {SEGFAULTS}:
    ctypes.string_at(0)
if x == {KILLED}:
    os.kill(os.getpid(), signal.SIGKILL)
while x == {HANGS}:
    pass
if x == {LOSES_GPU}:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""
BACK_S = 240.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_small_models(tmp_path_factory.mktemp("faulty"))
    shutil.rmtree(root / "lone")
    write_doubles(root, "doubles", TWO, told=TOLD)
    write_doubles(root, "lone", told=TOLD)
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = [word for name in LOADED for word in ("--load-model", name)]
    started = Server(repository, tmp_path_factory.mktemp("faulty-log") / "log", *FLAGS, *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@contextmanager
def traffic(
    server: Server, fault: str, model: str = "doubles", *, may_refuse: bool = False, connections: int = 16
) -> Iterator[Outcome]:
    """Ask before, during and after a fault; nothing is lost, and nothing refused unless it may be."""
    load = CheckedLoad(int(server.address.rpartition(":")[2]), model, RATE, connections)
    with load.running() as outcome:
        wait_until(lambda: len(outcome.answered) > RATE, "a second of answers")
        since_s = time.monotonic()
        yield outcome
        over_s = time.monotonic()
        wait_until(lambda: quick_since(outcome, over_s) > 2 * RATE, "two seconds of answers after the fault", BACK_S)
    print(f"{fault}: {outcome}; recovered after {outcome.recovered_s(since_s):.1f} s")
    assert outcome.wrong == []
    assert outcome.sent == len(outcome.answered) + outcome.refused
    assert may_refuse or not outcome.refused


def quick_since(outcome: Outcome, since_s: float) -> int:
    return sum(at_s > since_s for at_s, _ in outcome.answered)


def ask(server: Server, model: str, x: int) -> Answer:
    return server.infer(model, tensor("X", "INT32", [1], [x]))


def replicas(server: Server, model: str) -> list[int]:
    title = f"ray::ServeReplica:{model}:"
    return [process.pid for process in server.descendants() if title_of(process).startswith(title)]


def ours(server: Server) -> list[psutil.Process]:
    """Return the processes of ingress, controller and models."""
    return [process for process in server.descendants() if title_of(process).startswith("ray::ServeReplica")]


def test_the_only_replica_is_killed(server: Server) -> None:
    (old,) = replicas(server, "lone")
    with traffic(server, "kill -9 of the only replica", "lone", may_refuse=True) as outcome:
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: outcome.refused, "a refusal")
        assert server.get("/v2/models/lone/ready").status != 200
        wait_until(lambda: outcome.pids[-1] != old, "an answer of the new replica", BACK_S)
        assert server.get("/v2/models/lone/ready").status == 200
    assert outcome.refused


@pytest.mark.parametrize("way", [EXITS, SEGFAULTS], ids=["os._exit", "SIGSEGV"])
def test_a_request_ends_its_replica(server: Server, way: int) -> None:
    """Beside others it is not known which of them it was, so it gets a second try, and no third."""
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    fault = f"a request that ends its replica by {'os._exit' if way == EXITS else 'SIGSEGV'}"
    with traffic(server, fault, may_refuse=True) as outcome:
        before = set(outcome.pids)
        answer = ask(server, "doubles", way)
        assert answer.status in (500, 503), answer.body
        wait_until(lambda: set(outcome.pids[-100:]) - before, "answers of a new replica", BACK_S)
    wait_until(lambda: state(server, "doubles") == "READY", "READY in the index", BACK_S)


def test_a_request_takes_all_memory_in_both_replicas(server: Server) -> None:
    """The kernel's SIGKILL looks as anybody else's, so the request gets a second try, and no third."""
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    with traffic(server, "a request that ends two replicas by SIGKILL", may_refuse=True) as outcome:
        before = set(replicas(server, "doubles"))
        answer = ask(server, "doubles", KILLED)
        assert answer.status in (500, 503), answer.body
        wait_until(lambda: len(set(outcome.pids[-100:]) - before) == 2, "answers of two new replicas", BACK_S)
    wait_until(lambda: state(server, "doubles") == "READY", "READY in the index", BACK_S)


def test_a_model_hangs(server: Server) -> None:
    wait_until(lambda: state(server, "lone") == "READY", "READY in the index", BACK_S)
    (old,) = replicas(server, "lone")
    with traffic(server, "a batch that never ends", "lone", may_refuse=True, connections=512) as outcome:
        answer = ask(server, "lone", HANGS)
        assert answer.error == "model instance 'lone_0' has run one batch for more than 3 s"
        wait_until(lambda: outcome.pids[-1] != old, "an answer of the new replica", BACK_S)


def test_a_gpu_fails(server: Server) -> None:
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    with traffic(server, "a GPU that fails for good in one of two replicas") as outcome:
        before = set(outcome.pids)
        assert ask(server, "doubles", LOSES_GPU).status == 500
        wait_until(lambda: set(outcome.pids[-100:]) - before, "answers of a new replica", BACK_S)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ("", "raise RuntimeError('the weights are gone')"),
        ("", "import os; os.kill(os.getpid(), 9)"),
        ("", "raise MemoryError"),
        ("nonesuch { ]", ""),
        ("max_batch_size: -1", ""),
    ],
    ids=["raises", "is killed", "has no memory", "malformed config", "invalid config"],
)
def test_a_load_fails(server: Server, repository: Path, config: str, code: str) -> None:
    """The version that serves serves on, and stays READY."""
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    good = (repository / "doubles/config.pbtxt").read_text()
    with traffic(server, f"a reload that fails ({config or code})") as outcome:
        before = set(outcome.pids)
        (repository / "doubles/2").mkdir()
        (repository / "doubles/2/model.py").write_text(f"{code}\n{(repository / 'doubles/1/model.py').read_text()}")
        (repository / "doubles/config.pbtxt").write_text(f"{good}\n{config}")
        answer = server.post("/v2/repository/models/doubles/load")
        assert answer.status == 400 and answer.error.startswith("load failed for model 'doubles': "), answer.body
        print(answer.error)
    (repository / "doubles/config.pbtxt").write_text(good)
    shutil.rmtree(repository / "doubles/2")
    assert set(outcome.pids) == before
    assert state(server, "doubles") == "READY"
    assert server.post("/v2/repository/models/doubles/load").status == 200


def corrupt_files(root: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Yield a name for each fault, and what makes a copy of a good ONNX model have it."""
    good = (root / "simple/1/model.onnx").read_bytes()
    config = (root / "simple/config.pbtxt").read_text()

    def onnx(content: bytes) -> Callable[[Path], object]:
        return lambda folder: (folder / "1/model.onnx").write_bytes(content)

    def pbtxt(content: str) -> Callable[[Path], object]:
        return lambda folder: (folder / "config.pbtxt").write_text(content)

    def version(name: str) -> Callable[[Path], object]:
        return lambda folder: (folder / "1").rename(folder / name)

    def folder_for_file(folder: Path) -> None:
        (folder / "1/model.onnx").unlink()
        (folder / "1/model.onnx").mkdir()

    yield "truncated", onnx(good[: len(good) // 2])
    yield "random", onnx(bytes(range(256)) * 64)
    yield "empty", onnx(b"")
    yield "folder", folder_for_file
    yield "gone", lambda folder: (folder / "1/model.onnx").unlink()
    yield "no version", lambda folder: shutil.rmtree(folder / "1")
    for name in ("01x", "-1", "abc", "99999999999999999999"):
        yield f"version {name}", version(name)
    for line in ("backend: 5", "max_batch_size: 'x'", "input {", "input { dims: -7 }", "}", "\0", "nonesuch: 1"):
        yield f"config {line!r}", pbtxt(f"{config}\n{line}\n")
    yield "config binary", lambda folder: (folder / "config.pbtxt").write_bytes(bytes(range(256)))
    yield "config huge", pbtxt(config + "#" * (1 << 20))


def test_files_are_corrupt(server: Server, repository: Path) -> None:
    reasons = {}
    with traffic(server, "models with corrupt files"):
        for number, (fault, spoil) in enumerate(corrupt_files(repository)):
            name = f"corrupt_{number}"
            shutil.copytree(repository / "simple", repository / name)
            config = (repository / name / "config.pbtxt").read_text()
            (repository / name / "config.pbtxt").write_text(config)
            spoil(repository / name)
            answer = server.post(f"/v2/repository/models/{name}/load")
            assert answer.status in (400, 500), (fault, answer.body)
            reasons[fault] = answer.error
            shutil.rmtree(repository / name)
    print(*(f"  {fault}: {reason}" for fault, reason in reasons.items()), sep="\n")
    assert all(
        name in reason for name, reason in zip(map("corrupt_{}".format, range(99)), reasons.values(), strict=False)
    )
    assert server.post("/v2/repository/models/simple/load").status == 200


def test_descriptors_run_out(server: Server) -> None:
    (ingress,) = [each for each in ours(server) if title_of(each).startswith("ray::ServeReplica:eagleray:Ingress")]
    host, _, port = server.address.rpartition(":")
    limit = ingress.rlimit(resource.RLIMIT_NOFILE)
    idle = []
    with traffic(server, "an ingress that may open no more files", may_refuse=True):
        try:
            ingress.rlimit(resource.RLIMIT_NOFILE, (ingress.num_fds() + 8, limit[1]))
            for _ in range(256):
                idle.append(socket.create_connection((host, int(port))))
            # The clients of the load connect anew after 50 requests each: this is how long all of them have.
            wait = time.monotonic() + 5
            wait_until(lambda: time.monotonic() > wait, "five seconds without files", 10)
        finally:
            ingress.rlimit(resource.RLIMIT_NOFILE, limit)
            for connection in idle:
                connection.close()
    assert ingress.is_running()
