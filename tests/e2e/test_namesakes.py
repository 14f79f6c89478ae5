"""Files and packages that are named as Eagleray's own: a model's, a user's, and another Eagleray."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repositories import EXAMPLES
from tests.serving import EAGLERAY, ROOT, Server, environment, run, tensor, wait_until

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


def test_a_folder_with_another_eagleray_is_refused_before_ray_starts(tmp_path: Path) -> None:
    (tmp_path / "eagleray").mkdir()
    (tmp_path / "eagleray/__init__.py").write_text("raise RuntimeError('not for Eagleray')")
    server = Server(EXAMPLES, tmp_path / "log", cwd=tmp_path)
    try:
        assert server.exit_code() == 1
    finally:
        server.kill()
    said = f"error: Ray's workers would run the Eagleray in {tmp_path / 'eagleray'}, which stands in this folder"
    assert said in server.log() and "Traceback" not in server.log()
