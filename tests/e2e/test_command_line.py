"""The commands, run as a user runs them: what they print, and how they end."""

import json
import re
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.repositories import BROKEN, EXAMPLE_VERSIONS, EXAMPLES, write_broken_models, write_small_models
from tests.serving import EAGLERAY, ROOT, Process, Server, environment, infer_path, run, tensor, wait_until


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
    without = run(EAGLERAY, "plan", "--json", str(tmp_path))
    assert without.returncode == 2
    assert "GPU" in json.loads(without.stdout)["unplaced"]["digits"]
    done = run(EAGLERAY, "plan", "--json", "--num-gpus", "1", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert all(0 < deployment["num_gpus"] <= 0.5 for deployment in json.loads(done.stdout)["deployments"])


def test_plan_and_validate_know_the_gpus_and_settings_that_serve_would_have(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    config = tmp_path / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    for flags, code in (((), 2), (("--num-gpus", "1"), 0), (("--kind-gpu-fallback-to-cpu",), 0)):
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

    assert min(cpu_s() for _ in range(3)) < 1.0


@pytest.mark.parametrize("command", ["serve --help", "validate --help", f"validate {EXAMPLES / 'digits'}", "version"])
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
    ("flag", "purpose"), [("--http-port", "HTTP"), ("--grpc-port", "gRPC"), ("--metrics-port", "metrics")]
)
def test_taken_port_is_named_with_its_holder(listener: int, flag: str, purpose: str) -> None:
    ports = {"--http-port": "0", "--grpc-port": "0", "--metrics-port": "0"} | {flag: str(listener)}
    flat = [word for pair in ports.items() for word in pair]
    done = run(EAGLERAY, "serve", "--model-repository", str(EXAMPLES), *flat)
    assert done.returncode == 1
    holder = psutil.Process()
    assert f"port {listener} ({purpose}) is taken by process {holder.pid}, {holder.cmdline()[0]}" in done.stderr
    assert "Traceback" not in done.stderr


def start(repository: Path, tmp_path: Path, *flags: str) -> Server:
    return Server(repository, tmp_path / "log", "--placement", "embedded", "--num-cpus", "2", "--no-dashboard", *flags)


def test_control_c_lets_requests_under_way_be_answered_and_stops(digits: Path, tmp_path: Path) -> None:
    """SIGTERM does the same, which the next test sends."""
    shutil.copytree(write_small_models(tmp_path / "small") / "slow", digits / "slow")
    server = start(digits, tmp_path)
    try:
        server.wait_ready()
        assert server.get("/v2/health/ready").status == 200
        with server.client() as client, server.client() as idle:
            assert idle.get("/v2/health/live").status == 200
            client.send("POST", infer_path("slow"), {"inputs": [tensor("SECONDS", "FP32", [1], [2])]})
            server.statistics("slow")  # the request has been taken
            server.send_signal(signal.SIGINT)
            answer = client.receive()
        assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [2.0])
        assert server.exit_code() == 0
        assert "draining" in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def test_a_stop_is_told_to_load_balancers_first_and_loses_no_answer_whatever_comes(tmp_path: Path) -> None:
    shutil.copytree(write_small_models(tmp_path / "small") / "floats", tmp_path / "repository" / "floats")
    server = start(tmp_path / "repository", tmp_path, "--drain-delay-s", "3")
    size = 24 << 20
    taken = {"name": "X", "datatype": "FP32", "shape": [size // 4], "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [taken], "parameters": {"binary_data_output": True}})
    head = (
        f"POST {infer_path('floats')} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(header) + size}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n\r\n"
    )
    try:
        server.wait_ready()
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall((head + header).encode() + bytes(size))
            answer = slow.recv(1 << 16)  # it has begun to come, and most of it will wait
            server.send_signal(signal.SIGTERM)
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


def accepts(host: str, port: int) -> bool:
    """Return whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize("moment", ["starting Ray", r"LOADING"], ids=["ray", "models"])
def test_sigint_during_the_start_stops_cleanly(digits: Path, tmp_path: Path, moment: str) -> None:
    server = start(digits, tmp_path)
    try:
        server.wait_for(moment)
        server.stop(signal.SIGINT)
        assert "stopping: what was loading is given up, and everything stops" in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def test_a_third_signal_kills_everything_at_once(digits: Path, tmp_path: Path) -> None:
    server = start(digits, tmp_path)
    try:
        server.wait_for("LOADING")
        started = set(server.descendants())

        def ended() -> bool:
            server.send_signal(signal.SIGTERM)
            return not server.is_running()

        wait_until(ended, "the end", poll_s=0.2)
        assert server.exit_code() == 130
        server.assert_none_left(started)
    finally:
        server.kill()


_NAMESAKE = """
import importlib
import pickle
import time

import app
import numpy as np
import protocol
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        print("initialized by", app.WHOSE, "folder")
        assert importlib.import_module("app").WHOSE == "the model's"
        assert importlib.import_module("deployments.deep").WHOSE == "the model's"
        assert pickle.loads(b"capp\\nWHOSE\\n.") == pickle.loads(b"cprotocol\\nWHOSE\\n.") == "the model's"

    def execute(self, requests):
        pb_utils.Logger.log_warn("executed")
        pb_utils.Logger.log_verbose("verbosely")
        time.sleep(float(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0]))
        said = np.array([f"{app.WHOSE} {protocol.WHOSE}".encode()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WHOSE", said)]) for _ in requests]
"""
_NAMESAKE_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "WHOSE" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "eagleray.placement" value { string_value: "PLACEMENT" } }
"""


def write_namesakes(folder: Path, content: str) -> None:
    """Write modules that are named as packages of Eagleray."""
    for name in ("app.py", "protocol.py", "deployments/__init__.py", "deployments/deep.py", "repository_loader.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


PLACEMENTS = ("isolated", "packed", "embedded")


@pytest.fixture(scope="module")
def namesakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model in each placement; started, as each model is, among files named as our packages."""
    root = tmp_path_factory.mktemp("namesakes")
    folder, repository = root / "folder", root / "repository"
    write_namesakes(folder, "raise RuntimeError('not for Eagleray')")
    for placement in PLACEMENTS:
        write_namesakes(repository / placement / "1", 'WHOSE = "the model\'s"')
        (repository / placement / "1" / "model.py").write_text(_NAMESAKE)
        (repository / placement / "config.pbtxt").write_text(_NAMESAKE_CONFIG.replace("PLACEMENT", placement))
    server = Server(repository, root / "log", "--num-cpus", "2", "--no-dashboard", "--log-file", "../lines", cwd=folder)
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_files_named_as_our_packages_hide_nothing(namesakes: Server, placement: str) -> None:
    answer = namesakes.infer(placement, tensor("X", "FP32", [1], [0]))
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, ["the model's the model's"])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_a_model_prints_and_logs_appears_with_its_name(namesakes: Server, placement: str) -> None:
    namesakes.infer(placement, tensor("X", "FP32", [1], [0]))
    namesakes.wait_for(rf"(?m)^\[{placement}\] initialized by the model's folder$", timeout_s=10)
    namesakes.wait_for(rf"(?m)^\[{placement}\] WARNING: executed$", timeout_s=10)


def test_log_settings_hold_for_all_processes_and_the_log_file(namesakes: Server) -> None:
    path = namesakes.log_path.with_name("lines")

    def logged(text: str) -> set[str]:
        """Infer at all models; return those of which the log file has a new line of JSON with the text."""
        before = path.stat().st_size
        for placement in PLACEMENTS:
            namesakes.infer(placement, tensor("X", "FP32", [1], [0]))
        rows = [json.loads(line) for line in path.read_bytes()[before:].splitlines() if line.startswith(b"{")]
        return {row["model"] for row in rows if row["message"] == text}

    loaded = path.read_text()
    for placement in PLACEMENTS:
        assert re.search(rf"(?m)^I\d{{4}} .*\] \"successfully loaded '{placement}' version 1\"$", loaded)
    with namesakes.client() as client:
        refused = client.request("POST", "/v2/logging", {"log_file": "/tmp/elsewhere"})
        assert (refused.status, refused.error) == (501, "log file location can not be updated through network protocol")
        assert client.get("/v2/logging").json["log_file"] == str(path)
        client.request("POST", "/v2/logging", {"log_format": "json"})
        wait_until(lambda: logged("executed") == set(PLACEMENTS), "JSON of all")
        assert not logged("verbosely")
        client.request("POST", "/v2/logging", {"log_verbose_level": 1, "log_warning": False})
        wait_until(lambda: logged("verbosely") == set(PLACEMENTS), "verbose lines of all")
        client.request("POST", "/v2/models/packed/logging", {"log_verbose_level": 0})
        wait_until(lambda: logged("verbosely") == {"isolated", "embedded"}, "levels of one model")
        assert client.request("POST", "/v2/models/none/logging", {"log_verbose_level": 0}).status == 404
        wait_until(lambda: not logged("executed"), "no warnings")
        client.request("POST", "/v2/logging", {"log_verbose_level": 0, "log_warning": True, "log_slow_requests_ms": 50})

        def slow() -> set[str]:
            before = path.stat().st_size
            for placement in PLACEMENTS:
                namesakes.infer(placement, tensor("X", "FP32", [1], [0.1]))
            rows = [json.loads(line) for line in path.read_bytes()[before:].splitlines() if line.startswith(b"{")]
            return {row["model"] for row in rows if row.get("stages_ms", {}).get("compute_infer", 0) >= 100}

        wait_until(lambda: slow() == set(PLACEMENTS), "slow requests of all")
        client.request("POST", "/v2/logging", {"log_slow_requests_ms": 0, "log_format": "default"})
        assert "log_slow_requests_ms" not in client.get("/v2/logging").json


def test_installed_packages_named_as_ours_hide_nothing(tmp_path: Path) -> None:
    write_namesakes(tmp_path, "raise RuntimeError('not for Eagleray')")
    done = run(EAGLERAY, "plan", str(EXAMPLES), env=environment(PYTHONPATH=str(tmp_path)))
    assert done.returncode == 0, done.stderr


def test_package_that_was_imported_before_ours_is_named_at_once(tmp_path: Path) -> None:
    write_namesakes(tmp_path, "")
    code = "import app, eagleray; eagleray.main()"
    done = run(sys.executable, "-P", "-c", code, "serve", timeout_s=10, env=environment(PYTHONPATH=str(tmp_path)))
    assert done.returncode == 1
    assert f"error: Eagleray's package 'app' in {ROOT} is hidden by {tmp_path / 'app.py'}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_another_eagleray_is_refused_before_ray_starts(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "eagleray").mkdir()
    (tmp_path / "eagleray/__init__.py").write_text("raise RuntimeError('not for Eagleray')")
    server = Server(digits, tmp_path / "log", cwd=tmp_path)
    try:
        assert server.exit_code() == 1
    finally:
        server.kill()
    said = f"error: Ray's workers would run the Eagleray in {tmp_path / 'eagleray'}, which stands in this folder"
    assert said in server.log() and "Traceback" not in server.log()


def test_ray_that_does_not_start_is_one_sentence(digits: Path, tmp_path: Path) -> None:
    env = environment(RAY_TMPDIR="/proc/nowhere")
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    done = run(EAGLERAY, "serve", "--model-repository", str(digits), *ports, env=env)
    assert done.returncode == 1
    first, logs = done.stderr.strip().splitlines()
    assert first.startswith("error: Ray did not start: ") and "/proc/nowhere" in first
    assert logs.strip().startswith("logs: /proc/nowhere/ray/session_latest/logs")


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


def test_explicit_mode_loads_what_is_named_and_is_ready(broken_repository: Path, tmp_path: Path) -> None:
    server = start(
        broken_repository, tmp_path, "--model-control-mode", "explicit", "--load-model", "digits", "--id", "mine"
    )
    try:
        server.wait_ready()
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2").json["name"] == "mine"
        ready = server.post("/v2/repository/index", {"ready": True}).json
        assert [(row["name"], row["version"]) for row in ready] == [("digits", "1"), ("digits", "2")]
        printed = re.search(r"curl -s (http://\S+/infer) -d '(.*)'", server.log())
        assert printed, server.log()
        curl = Process(["curl", "-s", "--fail", printed[1], "-d", printed[2]], tmp_path / "curl")
        assert curl.exit_code() == 0
        assert json.loads(curl.log())["model_name"] == "digits"
        server.stop()
    finally:
        server.kill()
