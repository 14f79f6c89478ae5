"""The commands, run as a user runs them: what they print, and how they end."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.repositories import BROKEN, EXAMPLE_VERSIONS, EXAMPLES, write_broken_models, write_small_models
from tests.serving import (
    EAGLERAY,
    Process,
    Server,
    environment,
    infer_path,
    name_of,
    node_folders,
    run,
    slower,
    tensor,
    title_of,
    wait_until,
)


@pytest.fixture(scope="module")
def broken_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good model and the broken ones."""
    root = write_broken_models(tmp_path_factory.mktemp("broken"))
    shutil.copytree(EXAMPLES / "digits", root / "digits")
    return root


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A repository that loads quickly."""
    shutil.copytree(EXAMPLES / "digits", tmp_path / "repository" / "digits")
    return tmp_path / "repository"


# Broken only where a model is loaded: its files and its configuration are as they should be.
LOAD_TIME = {"broken_dependent", "broken_import", "broken_initialize"}
FAULTY = sorted(BROKEN.keys() - LOAD_TIME)


def test_validate_finds_nothing_wrong_with_the_examples() -> None:
    done = run(EAGLERAY, "validate", str(EXAMPLES))
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stdout
    assert "digits: ok, versions 1, 2" in done.stdout


def test_validate_prints_place_and_reason_of_each_fault(broken_repository: Path) -> None:
    done = run(EAGLERAY, "validate", str(broken_repository))
    assert done.returncode == 2
    place = re.escape(str(broken_repository / "broken_config" / "config.pbtxt"))
    assert re.search(rf"^{place}:3:\d+: error: ", done.stdout, re.MULTILINE), done.stdout
    for name in FAULTY:
        assert re.search(rf"^{name}: FAULTY: .*{re.escape(BROKEN[name])}", done.stdout, re.MULTILINE), done.stdout
        assert re.search(rf"^{re.escape(str(broken_repository))}/{name}\S*:\d+:\d+: error: ", done.stdout, re.MULTILINE)
    assert "digits: ok, versions 1, 2" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_validate_as_json_says_the_same(broken_repository: Path) -> None:
    done = run(EAGLERAY, "validate", "--json", str(broken_repository))
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["models"]["digits"] == {"versions": [1, 2], "failure": ""}
    for name in FAULTY:
        assert BROKEN[name] in document["models"][name]["failure"]
    (fault,) = [each for each in document["findings"] if each["path"].endswith("broken_config/config.pbtxt")]
    assert (fault["severity"], fault["line"]) == ("error", 3)
    assert fault["column"] > 1


def test_validate_as_json_of_a_good_repository_ends_with_0() -> None:
    done = run(EAGLERAY, "validate", "--json", str(EXAMPLES))
    assert done.returncode == 0
    models = json.loads(done.stdout)["models"]
    assert {(name, str(version)) for name, model in models.items() for version in model["versions"]} == EXAMPLE_VERSIONS


def test_validate_takes_several_repositories(broken_repository: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits_torch", tmp_path / "digits_torch")
    done = run(EAGLERAY, "validate", str(broken_repository), str(tmp_path))
    assert "digits_torch: ok" in done.stdout and "digits: ok" in done.stdout


def test_validate_loads_models_when_it_is_asked_to(broken_repository: Path) -> None:
    done = run(EAGLERAY, "validate", "--load", str(broken_repository))
    assert done.returncode == 2
    for name, part in BROKEN.items():
        assert re.search(rf"^{name}: FAULTY: .*{re.escape(part)}", done.stdout, re.MULTILINE), done.stdout
    assert "digits: ok, versions 1, 2" in done.stdout


def test_plan_prints_the_deployments_of_the_examples() -> None:
    done = run(EAGLERAY, "plan", "--num-cpus", "2", "--placement", "auto", str(EXAMPLES))
    assert done.returncode == 0, done.stderr
    for name in (
        "digits",
        "digits_pipeline",
        "digits_postprocess",
        "digits_preprocess",
        "digits_torch",
        "a step of ensemble 'digits_pipeline'",
        "small and on the CPU",
    ):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("placement", "deployments", "embedded"), [("isolated", 6, 0), ("packed", 1, 0), ("embedded", 0, 6), ("auto", 1, 0)]
)
def test_plan_as_json_tells_deployments_and_resources(placement: str, deployments: int, embedded: int) -> None:
    done = run(EAGLERAY, "plan", "--json", "--num-cpus", "2", "--placement", placement, str(EXAMPLES))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["deployments"]) == deployments
    assert len(document["embedded"]) == embedded
    assert document["unplaced"] == {}
    for deployment in document["deployments"]:
        assert placement in ("auto", deployment["placement"])
        assert 0 < deployment["num_cpus"] <= 2
        assert deployment["num_gpus"] == 0


def test_plan_gives_each_gpu_model_a_share_of_a_gpu(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    config = tmp_path / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    without = run(EAGLERAY, "plan", "--json", "--num-gpus", "0", str(tmp_path))
    assert without.returncode == 2
    assert "GPU" in json.loads(without.stdout)["unplaced"]["digits"]
    done = run(EAGLERAY, "plan", "--json", "--num-gpus", "1", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert all(0 < deployment["num_gpus"] <= 0.5 for deployment in json.loads(done.stdout)["deployments"])


def test_plan_and_validate_know_the_gpus_and_settings_that_serve_would_have(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    config = tmp_path / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    none = ("--num-gpus", "0")
    for flags, code in ((none, 2), (("--num-gpus", "1"), 0), ((*none, "--kind-gpu-fallback-to-cpu"), 0)):
        for command in ("plan", "validate"):
            done = run(EAGLERAY, command, "--model-repository", str(tmp_path), *flags)
            assert done.returncode == code, (command, flags, done.stdout, done.stderr)


def test_plan_names_what_it_cannot_place(broken_repository: Path) -> None:
    done = run(EAGLERAY, "plan", str(broken_repository))
    assert done.returncode == 2
    assert "not placed: broken_config: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve"], "--model-repository must be specified"),
        (["serve", "--no-such-flag"], "No such option"),
        (["serve", "--model-repository", "/no/such/folder"], "/no/such/folder is not a folder"),
        (["serve", "--model-repository", "ftp://host/models"], "ftp:// is not known; s3://, gs://, as://"),
        (["serve", "--model-repository", "https://host/models"], "must be an archive that ends with .tar"),
        (
            ["serve", "--model-repository", str(EXAMPLES), "--http-port", "8500", "--grpc-port", "8500"],
            "--grpc-port and --http-port are both 8500 on 127.0.0.1",
        ),
        (
            ["serve", "--model-repository", str(EXAMPLES), "--metrics-port", "8500", "--grpc-port", "8500"],
            "--metrics-port and --grpc-port are both 8500 on 127.0.0.1",
        ),
        (["serve", "--model-repository", str(EXAMPLES), "--http-port", "70000"], "--http-port"),
        (["serve", "--model-repository", str(EXAMPLES), "--dashboard-port", "70000"], "'--dashboard-port'"),
        (
            ["serve", "--model-repository", str(EXAMPLES), "--http-port", "8500", "--dashboard-port", "8500"],
            "--dashboard-port and --http-port are both 8500 on 127.0.0.1",
        ),
        (["serve", "--model-repository", str(EXAMPLES), "--num-cpus", "1.5"], "'--num-cpus'"),
        (["plan", str(EXAMPLES), "--num-cpus", "nan"], "'--num-cpus'"),
        (["plan", str(EXAMPLES), "--num-gpus", "-1"], "'--num-gpus'"),
        (["serve", "--model-repository", str(EXAMPLES), "--http-port", "http"], "--http-port"),
        (["serve", "--model-repository", str(EXAMPLES), "--placement", "anywhere"], "--placement"),
        (["serve", "--model-repository", str(EXAMPLES), "--exit-on-error=maybe"], "--exit-on-error"),
        (["serve", "--model-repository", str(EXAMPLES), "--load-model", "digits"], "--model-control-mode=explicit"),
        (["validate"], "REPOSITORIES"),
        (["validate", "/no/such/folder"], "/no/such/folder"),
        (["plan", "--placement", "anywhere", str(EXAMPLES)], "--placement"),
        (["nothing"], "nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_wrong_usage_is_named_and_ends_with_2(arguments: list[str], text: str) -> None:
    done = run(EAGLERAY, *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["", "serve", "validate", "plan"])
def test_help_is_quick(command: str) -> None:
    def cpu_s() -> float:
        """What the command takes of a CPU; how long it waits for one is the machine's."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(EAGLERAY, *command.split(), "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0 and "Usage:" in done.stdout
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(cpu_s() < 1.0 for _ in range(3))


@pytest.mark.parametrize(
    "command", ["serve --help", "validate --help", f"validate --num-gpus 0 {EXAMPLES / 'digits'}", "version"]
)
def test_commands_that_start_nothing_import_no_ray(command: str) -> None:
    code = (
        "import sys\nfrom app.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.exit('ray' in sys.modules)"
    )
    assert run(sys.executable, "-c", code, *command.split()).returncode == 0


def test_version_is_printed() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run(EAGLERAY, "version").stdout)


def test_flags_are_spelled_as_tritonserver_spells_them() -> None:
    text = run(EAGLERAY, "serve", "--help").stdout
    flags = "model-repository http-port http-address metrics-port model-control-mode load-model strict-readiness"
    flags += " exit-on-error strict-model-config log-verbose http-max-input-size placement num-cpus ray-address"
    for flag in flags.split():
        assert f"--{flag}" in text


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("flag", "purpose"),
    [
        ("--http-port", "HTTP"),
        ("--grpc-port", "gRPC"),
        ("--metrics-port", "metrics"),
        ("--dashboard-port", "Ray's dashboard"),
    ],
)
def test_taken_port_is_named_with_its_holder(listener: int, flag: str, purpose: str) -> None:
    ports = {"--http-port": "0", "--grpc-port": "0", "--metrics-port": "0"} | {flag: str(listener)}
    flat = [word for pair in ports.items() for word in pair]
    done = run(EAGLERAY, "serve", "--model-repository", str(EXAMPLES), *flat)
    assert done.returncode == 1
    holder = psutil.Process()
    assert f"port {listener} ({purpose}) is taken by process {holder.pid}, {holder.cmdline()[0]}" in done.stderr
    assert "Traceback" not in done.stderr


def start(
    repository: Path, tmp_path: Path, *flags: str, env: dict[str, str] | None = None, within: Sequence[str] = ()
) -> Server:
    small = ("--placement", "embedded", "--num-cpus", "2", "--no-dashboard")
    return Server(repository, tmp_path / "log", *small, *flags, env=env, within=within)


def test_a_stop_is_told_to_load_balancers_first_and_loses_no_answer_whatever_comes(tmp_path: Path) -> None:
    shutil.copytree(write_small_models(tmp_path / "small") / "floats", tmp_path / "repository" / "floats")
    server = start(tmp_path / "repository", tmp_path, "--drain-delay-s", "3", within=("setsid",))
    size = 24 << 20
    taken = {"name": "X", "datatype": "FP32", "shape": [size // 4], "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [taken], "parameters": {"binary_data_output": True}})
    head = (
        f"POST {infer_path('floats')} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(header) + size}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n\r\n"
    )
    try:
        server.wait_ready()
        assert rays_programs(server) == {"monitor.py"}
        assert [title_of(each) for each in server.descendants() if os.getpgid(each.pid) == server.pid] == []
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall((head + header).encode() + bytes(size))
            answer = slow.recv(1 << 16)  # it has begun to come, and most of it will wait
            os.killpg(server.pid, signal.SIGTERM)  # the whole group, as `timeout` sends it
            wait_until(lambda: server.get("/v2/health/ready").status == 400, "readiness fails")
            assert server.infer("floats", tensor("X", "FP32", [1], [2.5])).status == 200
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: not accepts(host, int(port)), "the end of listening")
            while data := slow.recv(1 << 20):
                answer += data
        assert len(answer.partition(b"\r\n\r\n")[2]) > size
        assert server.exit_code() == 0
    finally:
        server.kill()


def rays_programs(server: Server) -> set[str]:
    """Return which of the programs run that Ray starts on every head, and Eagleray need not have."""
    titles = " ".join(title_of(process) for process in server.descendants())
    return set(re.findall(r"\b(?:dashboard|log_monitor|monitor)\.py\b", titles))


def accepts(host: str, port: int) -> bool:
    """Return whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["ray", "models"])
def test_sigint_during_the_start_stops_cleanly(
    digits: Path, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    server = start(digits, tmp_path)
    try:
        if moment == "ray":
            wait_until(lambda: "raylet" in [each.name() for each in server.descendants()], "a process of Ray's")
        else:
            server.wait_for("LOADING")
        server.stop(number)
        assert "stopping: what was loading is given up, and everything stops" in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def test_sigint_before_anything_is_started_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal\nprint('imported', flush=True)\nsignal.pause()\n")
    # As from a terminal: what runs in the background of a script ignores SIGINT, and so does all that it starts.
    foreground = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{foreground}; import eagleray; eagleray.main()"
    env = environment(PYTHONPATH=str(tmp_path))
    command = Process([sys.executable, "-c", script, "serve"], tmp_path / "log", env)
    try:
        command.wait_for("imported")
        command.send_signal(signal.SIGINT)
        assert command.exit_code() == -signal.SIGINT
        assert command.log() == "imported\n"
    finally:
        command.kill()


def test_a_third_signal_kills_everything_at_once(digits: Path, tmp_path: Path) -> None:
    server = start(digits, tmp_path)
    try:
        server.wait_for("LOADING")
        started = set(server.descendants())

        def ended() -> bool:
            server.send_signal(signal.SIGTERM)
            return not server.is_running()

        wait_until(ended, "the end", poll_s=0.2)
        # On a busy machine it may have stopped by itself before it heard of the third: 0, or the last signal's.
        assert server.exit_code() in (130, 0, -signal.SIGTERM)
        server.assert_none_left(started)
    finally:
        server.kill()


def test_a_second_sigterm_once_ray_ends_changes_nothing(digits: Path, tmp_path: Path) -> None:
    """Ray's handlers in C++ have gone by then, and have left none behind."""
    server = start(digits, tmp_path)
    try:
        server.wait_for("LOADING")
        started = set(server.descendants())
        (raylet,) = [process for process in started if name_of(process) == "raylet"]
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: not raylet.is_running(), "the end of Ray", poll_s=0.01)
        server.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
        server.assert_none_left(started)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("gcs_server", "Serve starts"),
        ("gcs_server", "models load"),
        ("gcs_server", "it serves"),
        ("raylet", "it serves"),
    ],
)
def test_a_server_whose_ray_has_ended_ends_with_1(digits: Path, tmp_path: Path, name: str, moment: str) -> None:
    """What serves goes on serving without the raylet, and nothing of it that ends would ever be replaced.

    Without the GCS most calls of Ray's wait for a minute, after which Ray ends their processes.
    """
    sessions = Path(tempfile.gettempdir()) / "ray"
    before = set(sessions.glob("session_*"))  # of processes that had the same id, too
    server = start(digits, tmp_path)
    try:
        if moment == "Serve starts":
            wait_until(lambda: any("ServeController" in title_of(each) for each in server.descendants()), "Serve")
        elif moment == "models load":
            server.wait_for("LOADING")
        else:
            server.wait_ready()
        started = set(server.descendants())
        folders = node_folders(started)
        assert folders or moment != "it serves"
        (killed,) = [process for process in started if name_of(process) == name]
        killed.kill()
        assert server.exit_code(timeout_s=30 * slower()) == 1
        assert f"error: Ray's {name} has ended" in server.log()
        assert "Traceback" not in server.log()
        server.assert_none_left(started)
        assert not [folder for folder in folders if folder.exists()]
        assert len(set(sessions.glob(f"session_*_{server.pid}")) - before) == 1, "another Ray was started"
    finally:
        server.kill()


def test_ray_that_does_not_start_is_one_sentence(digits: Path, tmp_path: Path) -> None:
    env = environment(RAY_TMPDIR="/proc/nowhere")
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    done = run(EAGLERAY, "serve", "--model-repository", str(digits), *ports, env=env)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: Ray did not start: its folder, /proc/nowhere/ray, cannot be written: ")
    assert line.endswith("; set RAY_TMPDIR to one that can")


def test_exit_on_error_ends_with_1_when_a_model_is_broken(broken_repository: Path, tmp_path: Path) -> None:
    server = start(broken_repository, tmp_path, "--exit-on-error=true")
    try:
        assert server.exit_code(timeout_s=120) == 1
        assert "error: failed to load all models: " in server.log()
        logs = re.search(r"logs: (\S+) ", server.log())
        assert logs and (Path(logs[1]) / "serve").is_dir()
        assert "broken_initialize" in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def chosen(broken_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two chosen models, whose dashboard of Ray's is late; the last test stops it."""
    folder = tmp_path_factory.mktemp("chosen")
    repository = shutil.copytree(broken_repository, folder / "repository")
    shutil.copytree(write_small_models(folder / "small") / "slow", repository / "slow")
    flags = ("--dashboard", "--model-control-mode", "explicit", "--load-model", "digits", "--load-model", "slow")
    env = environment(RAY_DASHBOARD_STARTUP_TIMEOUT_S="0")
    server = start(repository, folder, *flags, "--id", "mine", env=env)
    try:
        yield server.wait_ready()
    finally:
        server.kill()


def test_explicit_mode_loads_what_is_named_and_is_ready(chosen: Server, tmp_path: Path) -> None:
    assert chosen.get("/v2/health/ready").status == 200
    assert chosen.get("/v2").json["name"] == "mine"
    ready = chosen.post("/v2/repository/index", {"ready": True}).json
    assert [(row["name"], row["version"]) for row in ready] == [("digits", "1"), ("digits", "2"), ("slow", "1")]
    printed = re.search(r"curl -s (http://\S+/infer) -d '(.*)'", chosen.log())
    assert printed, chosen.log()
    curl = Process(["curl", "-s", "--fail", printed[1], "-d", printed[2]], tmp_path / "curl")
    assert curl.exit_code() == 0
    assert json.loads(curl.log())["model_name"] == "digits"


def test_a_dashboard_that_does_not_start_in_time_is_left_out(chosen: Server) -> None:
    assert rays_programs(chosen) == {"dashboard.py", "monitor.py"}
    warning = r"(?m)^\[ .* s\] warning: Ray's dashboard has not started; models are served without it\. See \S+/dashboard.log$"
    assert re.search(warning, chosen.log()), chosen.log()
    assert "\n  dashboard  " not in chosen.log() and "Traceback" not in chosen.log()


def test_control_c_lets_requests_under_way_be_answered_and_stops(chosen: Server) -> None:
    """Runs last: it stops the server. SIGTERM does the same, which another test sends."""
    with chosen.client() as client, chosen.client() as idle:
        assert idle.get("/v2/health/live").status == 200
        client.send("POST", infer_path("slow"), {"inputs": [tensor("SECONDS", "FP32", [1], [2])]})
        chosen.statistics("slow")  # the request has been taken
        chosen.send_signal(signal.SIGINT)
        answer = client.receive()
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [2.0])
    assert chosen.exit_code() == 0
    assert "draining" in chosen.log()
    assert "Traceback" not in chosen.log()
