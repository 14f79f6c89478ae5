"""Faults of models, files, clients and the machine, while clients ask 200 times a second for what has no fault.

`test_fault_campaign.py` has those of processes and nodes, on a cluster; `docs/faults.md` says which fault is in which
test. One server for all; the tests run in their order, and the last of those that share it ends it.
"""

import base64
import json
import os
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.checked_load import CheckedLoad, Outcome, write_doubles
from tests.e2e.shared.test_decoupled import ended_count
from tests.e2e.shared.test_faults import canceled, seconds, state
from tests.repositories import write_small_models
from tests.serving import Answer, Server, environment, infer_path, run, tensor, title_of, wait_until

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make soak")

RATE = 200
LOADED = ("doubles", "lone", "slow", "simple", "countdown_in_thread", "sequence_sums", "shared_sums")
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
BAD_LINES = (
    "backend: 5",
    "max_batch_size: 'x'",
    "max_batch_size: 99999999999",
    "max_batch_size: 1.5",
    "max_batch_size: -1",
    "input {",
    "input [ , ]",
    'input [ { name: "X" }',
    "input { dims: -7 }",
    "input { name: 5 }",
    'input { name: "X" dims: 1 }',
    'input { name: "X" data_type: TYPE_INT32 }',
    'input { name: "X" data_type: TYPE_NONE dims: 1 }',
    'input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }',
    'output { name: "OUTPUT0" data_type: TYPE_FP64 dims: 16 }',
    'output { name: "X" data_type: TYPE_INT32 dims: 16 label_filename: "no" }',
    "instance_group { kind: KIND_NONE }",
    "instance_group [ { gpus: 'a' } ]",
    "version_policy { specific { versions: 'a' } }",
    "version_policy { specific { versions: 7 } }",
    "sequence_batching { max_sequence_idle_microseconds: x }",
    "sequence_batching { }",
    "ensemble_scheduling { }",
    "model_warmup { batch_size: -1 }",
    "parameters { key: 1 }",
    'parameters { key: "a" value: 1 }',
    "response_cache { enable: maybe }",
    "metric_tags { key: 5 }",
    "cc_model_filenames { key: 1 }",
    'default_model_filename: "../../other"',
    'name: "another"',
    "name",
    "name:",
    'name: "',
    '"text"',
    "nonesuch: 1",
    "nonesuch { a: 1 }",
    "= 1",
    "{}",
    "}",
    "\0",
)
"""What makes a good configuration a bad one, as one more line of it."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_small_models(tmp_path_factory.mktemp("faulty"))
    shutil.rmtree(root / "lone")
    write_doubles(root, "doubles", TWO, told=TOLD)
    write_doubles(root, "lone", told=TOLD)
    shutil.copytree(root / "sequence_sums", root / "shared_sums")
    config = root / "sequence_sums/config.pbtxt"
    shared = config.read_text() + 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }' + TWO
    (root / "shared_sums/config.pbtxt").write_text(shared)
    one_slot = config.read_text().replace("max_candidate_sequences: 64", "max_candidate_sequences: 1")
    config.write_text(one_slot.replace("60000000", "1000000"))
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = [word for name in LOADED for word in ("--load-model", name)]
    started = Server(repository, tmp_path_factory.mktemp("faulty-log") / "log", *FLAGS, *flags)
    try:
        yield started.wait_ready()
        if started.is_running():
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
    with traffic(server, "kill -9 of the only replica", "lone", connections=512) as outcome:
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: server.get("/v2/models/lone/ready").status != 200, "not ready", poll_s=0.01)
        wait_until(lambda: outcome.pids[-1] != old, "an answer of the new replica", BACK_S)
        assert server.get("/v2/models/lone/ready").status == 200


@pytest.mark.parametrize("way", [EXITS, SEGFAULTS], ids=["os._exit", "SIGSEGV"])
def test_a_request_ends_its_replica(server: Server, way: int) -> None:
    """Beside others it is not known which of them it was, so it gets a second try, alone, and no third."""
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    fault = f"a request that ends its replica by {'os._exit' if way == EXITS else 'SIGSEGV'}"
    with traffic(server, fault, connections=512) as outcome:
        before = set(outcome.pids)
        answer = ask(server, "doubles", way)
        assert answer.status == 500, answer.body
        wait_until(lambda: set(outcome.pids[-100:]) - before, "answers of a new replica", BACK_S)
    wait_until(lambda: state(server, "doubles") == "READY", "READY in the index", BACK_S)


def test_a_request_takes_all_memory_in_both_replicas(server: Server) -> None:
    """The kernel's SIGKILL looks as anybody else's, so the request gets two more tries, alone, and no fourth."""
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    with traffic(server, "a request that ends two replicas by SIGKILL", connections=512) as outcome:
        before = set(replicas(server, "doubles"))
        answer = ask(server, "doubles", KILLED)
        assert answer.status == 500, answer.body
        wait_until(lambda: len(set(outcome.pids[-100:]) - before) == 2, "answers of two new replicas", BACK_S)
    wait_until(lambda: state(server, "doubles") == "READY", "READY in the index", BACK_S)


def test_a_model_hangs(server: Server) -> None:
    wait_until(lambda: state(server, "lone") == "READY", "READY in the index", BACK_S)
    (old,) = replicas(server, "lone")
    with traffic(server, "a batch that never ends", "lone", connections=512) as outcome:
        # It hangs on the loop's thread or on its own, whichever is quicker just then.
        answer = ask(server, "lone", HANGS)
        assert answer.status in (500, 503) and "'lone" in answer.error, answer.body
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
    """The version that serves serves on, and stays READY; the index names the other one until the next load."""
    wait_until(lambda: len(replicas(server, "doubles")) == 2, "two replicas", BACK_S)
    good = (repository / "doubles/config.pbtxt").read_text()
    with traffic(server, f"a reload that fails ({config or code})") as outcome:
        before = set(outcome.pids)
        (repository / "doubles/2").mkdir()
        (repository / "doubles/2/model.py").write_text(f"{code}\n{(repository / 'doubles/1/model.py').read_text()}")
        (repository / "doubles/config.pbtxt").write_text(f"{good}\n{config}")
        answer = server.post("/v2/repository/models/doubles/load")
        assert answer.status == 400 and answer.error.startswith("load failed for model 'doubles': "), answer.body
        if "os.kill" in code:
            assert "Internal: its process died as it was loaded, as when" in answer.error
        print(answer.error)
    (repository / "doubles/config.pbtxt").write_text(good)
    shutil.rmtree(repository / "doubles/2")
    assert set(outcome.pids) == before
    states = server.states("doubles")
    assert states.pop("1") == ("READY", "")
    # What is wrong with a file that cannot be parsed is of no version.
    beside = [] if "nonesuch" in config else [("2", True)]
    assert [(number, each in answer.error) for number, (_, each) in states.items()] == beside
    assert server.post("/v2/repository/models/doubles/load").status == 200
    assert server.states("doubles") == {"1": ("READY", "")}


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
    for line in BAD_LINES:
        yield f"config {line!r}", pbtxt(f"{config}\n{line}\n")
    yield "config binary", lambda folder: (folder / "config.pbtxt").write_bytes(bytes(range(256)))
    yield "config huge", pbtxt(config + "#" * (1 << 20))


def test_files_are_corrupt(server: Server, repository: Path) -> None:
    reasons = {}
    with traffic(server, "models with corrupt files"):
        for number, (fault, spoil) in enumerate(corrupt_files(repository)):
            name = f"corrupt_{number}"
            shutil.copytree(repository / "simple", repository / name)
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


def test_clients_leave(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    with traffic(server, "clients that leave in the body, the queue, the run and the stream"):
        for _ in range(20):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        before = canceled(server, "slow")
        with server.client() as runs:
            runs.send("POST", infer_path("slow"), {"inputs": [seconds(2.5)]})
            server.statistics("slow")  # comes after the request on every way that leads to the model
            left = []
            for count in range(10):
                with server.client() as waits:
                    waits.send("POST", infer_path("slow"), {"inputs": [seconds(60)]})
                    server.statistics("slow")
                left_s = time.monotonic()
                wait_until(lambda count=count: canceled(server, "slow") == before + count + 1, "its end", poll_s=0.005)
                left.append(time.monotonic() - left_s)
            assert runs.receive().status == 200
        print(f"  out of the queue after {1e3 * sorted(left)[5]:.0f} ms, at most {1e3 * max(left):.0f} ms")
        assert sorted(left)[5] < 0.1
        ended = ended_count(server, "countdown_in_thread")
        body = json.dumps({"COUNT": 100_000}).encode()
        with socket.create_connection((host, int(port))) as stream:
            head = "POST /v2/models/countdown_in_thread/generate_stream HTTP/1.1\r\nHost: a\r\n"
            stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert b"200 OK" in stream.recv(65536)
        wait_until(lambda: ended_count(server, "countdown_in_thread") == ended + 1, "the end of the stream")


def step(server: Server, model: str, sequence: int, value: int, **flags: bool) -> Answer:
    given = tensor("INPUT", "INT32", [1, 1], [value])
    return server.infer(model, given, parameters={"sequence_id": sequence, **flags})


def total(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.json["outputs"][0]["data"][0])


def test_sequences_go_wrong(server: Server) -> None:
    with traffic(server, "sequences without END, with two STARTs, and whose replica dies"):
        assert total(step(server, "sequence_sums", 1, 5, sequence_start=True)) == 5
        # The only slot is free when the first has been idle for a second.
        assert total(step(server, "sequence_sums", 2, 1, sequence_start=True)) == 1
        late = step(server, "sequence_sums", 1, 5)
        assert late.status == 400 and "sequence 1 to model 'sequence_sums' must specify the START flag" in late.error
        assert total(step(server, "sequence_sums", 2, 10, sequence_start=True)) == 10
        assert total(step(server, "sequence_sums", 2, 1)) == 11
        ids = range(100, 116)
        for number in ids:
            assert total(step(server, "shared_sums", number, number, sequence_start=True)) == number
        victim, _ = replicas(server, "shared_sums")
        os.kill(victim, signal.SIGKILL)
        went_on = 0
        for number in ids:
            answer = step(server, "shared_sums", number, 1)
            if answer.status == 200:
                went_on += 1
                assert total(answer) == number + 1
            else:
                assert answer.status in (400, 503) and str(number) in answer.error, answer.body
                anew = step(server, "shared_sums", number, 3, sequence_start=True)
                assert total(anew) == 3
        print(f"  {went_on} of {len(ids)} sequences went on, the others started anew")
        assert 0 < went_on < len(ids)


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


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 64 MiB, on which Ray, what it starts, and every `tempfile` write; sockets want a short path."""
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    made = run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder))
    if made.returncode:
        folder.rmdir()
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        run("umount", "--lazy", str(folder))
        folder.rmdir()


@pytest.mark.parametrize("rotation", [{}, {"RAY_ROTATION_MAX_BYTES": "0"}], ids=["rotated logs", "one log"])
def test_a_disk_fills_up(repository: Path, small_disk: Path, rotation: dict[str, str], tmp_path: Path) -> None:
    """What needs no room goes on, also loads; what does says so, and works when there is room again."""
    env = environment(TMPDIR=str(small_disk), RAY_TMPDIR=str(small_disk), **rotation)
    own = Server(repository, tmp_path / "log", *FLAGS, "--load-model", "lone", "--load-model", "simple", env=env)
    file = base64.b64encode((repository / "simple/1/model.onnx").read_bytes()).decode()
    given = {"parameters": {"config": json.dumps({"backend": "onnxruntime"}), "file:1/model.onnx": file}}
    load = "/v2/repository/models/{}/load"
    try:
        own.wait_ready()
        with traffic(own, "a full disk", "lone"):
            with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            loaded = own.post(load.format("doubles"))
            if rotation:
                assert loaded.status == 400 and f"there is no room in {small_disk}" in loaded.error, loaded.body
            else:
                assert loaded.status == 200, loaded.body
            assert own.post(load.format("simple")).status == 200
            assert own.post(load.format("simple"), given).status == 200
            numbers = [tensor(name, "INT32", [1, 16], [1] * 16) for name in ("INPUT0", "INPUT1")]
            assert own.infer("simple", *numbers).status == 200
            (small_disk / "filler").unlink()
            assert own.post(load.format("doubles")).status == 200
            assert own.post(load.format("simple"), given).status == 200
        own.stop()
    finally:
        own.kill()


def with_shared_memory(size: str) -> tuple[str, ...]:
    """Return what goes before a command that shall find so much of it."""
    mount = f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'
    return "unshare", "--mount", "sh", "-c", mount, "sh"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something else at /dev/shm, as root")
def test_there_is_little_shared_memory(repository: Path, tmp_path: Path) -> None:
    """As in a container: large tensors go by socket, and with next to none the start says why it fails."""
    (repository / "echo/1").mkdir(parents=True)
    dims = "data_type: TYPE_INT32 dims: -1"
    config = f'backend: "identity" input {{ name: "INPUT0" {dims} }} output {{ name: "OUTPUT0" {dims} }}'
    (repository / "echo/config.pbtxt").write_text(config)
    flags = (*FLAGS, "--load-model", "lone", "--load-model", "echo")
    own = Server(repository, tmp_path / "log", *flags, within=with_shared_memory("1m"))
    values = list(range(200_000))
    try:
        own.wait_ready()
        with traffic(own, "1 MiB of shared memory", "lone"):
            for _ in range(10):
                answer = own.infer("echo", tensor("INPUT0", "INT32", [len(values)], values))
                assert answer.json["outputs"][0]["data"] == values
        own.stop()
    finally:
        own.kill()
    none = Server(repository, tmp_path / "log", *flags, within=with_shared_memory("4k"))
    try:
        none.wait_for(r"there are \d+ bytes free in /dev/shm, where the processes of a node share a few files")
        assert none.exit_code() == 1
    finally:
        none.kill()


def test_a_stop_under_load(server: Server, repository: Path) -> None:
    """With a stream, an idle connection and a model that is loading; this ends the server that the others share."""
    write_doubles(repository, "later")
    (repository / "later/1/model.py").write_text("import time; time.sleep(60)")
    load = CheckedLoad(int(server.address.rpartition(":")[2]), "doubles", RATE, patience_s=0.0)
    host, _, port = server.address.rpartition(":")
    with (
        server.client() as idle,
        server.client() as loading,
        socket.create_connection((host, int(port))) as stream,
    ):
        assert idle.get("/v2/health/live").status == 200
        body = json.dumps({"COUNT": 200}).encode()
        head = "POST /v2/models/countdown_in_thread/generate_stream HTTP/1.1\r\nHost: a\r\n"
        stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        loading.send("POST", "/v2/repository/models/later/load")
        with load.running() as outcome:
            wait_until(lambda: len(outcome.answered) > 2 * RATE, "two seconds of answers")
            taken, stopped_s = outcome.sent, time.monotonic()
            server.send_signal(signal.SIGTERM)
            received = b""
            while data := stream.recv(65536):
                received += data
            assert server.exit_code() == 0
        assert loading.receive().status == 503
    print(f"SIGTERM under load: {outcome}; ended {time.monotonic() - stopped_s:.1f} s after the signal")
    assert received.count(b"data: ") == 200
    assert sum(at_s <= stopped_s for at_s, _ in outcome.answered) >= taken
    assert all("Connect" in each for each in outcome.wrong), outcome.wrong
    assert "Traceback" not in server.log()
