"""Python models that bring an environment of their own (`EXECUTION_ENV_PATH`)."""

import fcntl
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from python_models import ECHO_CONFIG, floats, instances, request_of, run, write_model

from deployments.backends.backend import ModelLoadError
from deployments.backends.python import metric
from deployments.backends.python.auto_complete import complete
from deployments.backends.python.backend import PythonBackend
from deployments.backends.python.process.environment import environment_at
from deployments.core.counts import CUSTOM_COUNTER, Totals
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder

WHERE = """
    import os, sys, only_here
    class TritonPythonModel:
        def initialize(self, args):
            family = pb_utils.MetricFamily("seen_total", "What was seen", pb_utils.MetricFamily.COUNTER)
            self.seen = family.Metric()
        def execute(self, requests):
            self.seen.increment(len(requests))
            seen = {"value": only_here.VALUE, "prefix": sys.prefix, "path": os.environ["PATH"].split(":")[0]}
            return [pb_utils.InferenceResponse([], parameters=seen)]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with nothing but NumPy and a module of its own."""
    root = tmp_path_factory.mktemp("environments") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    (packages,) = root.glob("lib/python*/site-packages")
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    (packages / "only_here.py").write_text("VALUE = 17")
    return root


def load(tmp_path, value):
    config = ECHO_CONFIG + f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{value}" }} }}'
    package = write_model(tmp_path, WHERE, config)
    specs = [replace(spec, own_process=True) for spec in instances(package)]
    return PythonBackend().load(package, specs)[0]


def seen_by(instance):
    try:
        return run(instance, request_of(X=floats(1)))[0].parameters
    finally:
        instance.close()


def test_a_folder_is_the_environment(tmp_path, environment):
    assert seen_by(load(tmp_path, environment)) == {
        "value": 17, "prefix": str(environment), "path": str(environment / "bin"),
    }  # fmt: skip


def test_an_empty_value_is_no_environment(tmp_path):
    code = """
        import sys
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(8)
                return config
            def execute(self, requests):
                return [pb_utils.InferenceResponse([], parameters={"prefix": sys.prefix})]
    """
    config = ECHO_CONFIG + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "" } }'
    package = write_model(tmp_path, code, config)
    assert complete(package.config, package.model_path, package.version_path, package.file_path).max_batch_size == 8
    specs = [replace(spec, own_process=True) for spec in instances(package)]
    assert seen_by(PythonBackend().load(package, specs)[0]) == {"prefix": sys.prefix}


def test_a_model_counts_metrics_in_an_environment_that_has_numpy_alone(tmp_path, environment):
    counters = NodeCounters(NodeFolder("node", tmp_path))
    metric.export_to(lambda: counters, counters.folder)
    try:
        seen_by(load(tmp_path, environment))
        rows = counters.totals().rows
    finally:
        metric.export_to(Totals)
        counters.close()
    [counted] = [row.value for label, row in rows.items() if label.kind == CUSTOM_COUNTER]
    assert counted == 1


def test_an_archive_beside_the_model_is_unpacked_once(tmp_path, environment, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "echo").mkdir()
    with tarfile.open(tmp_path / "echo" / "env.tar.gz", "w:gz") as archive:
        archive.add(environment, ".")
    first = seen_by(load(tmp_path, "$$TRITON_MODEL_DIRECTORY/env.tar.gz"))
    assert first["value"] == 17
    assert first["prefix"].startswith(str(tmp_path))
    Path(first["prefix"], "stays").touch()
    assert seen_by(load(tmp_path, "$$TRITON_MODEL_DIRECTORY/env.tar.gz")) == first
    assert Path(first["prefix"], "stays").exists()


def completed_in(environment, folder, code):
    """The configuration of a model that has nothing but its name and an environment, as its code completes it."""
    config = f"""name: "echo" backend: "python"
        parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}"""
    package = write_model(folder, code, config)
    return complete(package.config, package.model_path, package.version_path, package.file_path)


def test_the_configuration_is_completed_in_the_environment(tmp_path, environment):
    code = """
        import only_here
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(only_here.VALUE)
                return config
    """
    assert completed_in(environment, tmp_path, code).max_batch_size == 17


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("#!/bin/sh\nexit 41", "needs Python 3.11 or newer, which its execution environment is not"),
        ("", "needs NumPy, which its execution environment does not have"),
    ],
    ids=["old Python", "no NumPy"],
)
def test_what_keeps_an_environment_from_completing_is_said(tmp_path, python, reason):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    if python:
        (environment / "bin" / "python").unlink()
        (environment / "bin" / "python").write_text(python)
        (environment / "bin" / "python").chmod(0o755)
    code = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                return config
    """
    with pytest.raises(ModelLoadError) as raised:
        completed_in(environment, tmp_path, code)
    assert raised.value.reason == f"auto_complete_config of model 'echo' {reason}"


def member(name, kind=tarfile.REGTYPE, link="", data=b""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


ESCAPES = {
    "parent": [member("../out", data=b"x")],
    "absolute": [member("/OUT/out", data=b"x")],
    "through a link": [member("link", tarfile.SYMTYPE, "/OUT"), member("link/out", data=b"x")],
    "over a link": [member("link", tarfile.SYMTYPE, "/OUT/out"), member("link", data=b"x")],
    "hard link": [member("link", tarfile.LNKTYPE, "../out")],
    "device": [member("null", tarfile.CHRTYPE)],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES)
def test_an_archive_that_reaches_out_of_its_folder_is_refused(tmp_path, members):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "cache").mkdir()
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        for info, data in members:
            info.name = info.name.replace("/OUT", str(outside))
            info.linkname = info.linkname.replace("/OUT", str(outside))
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(ModelLoadError, match="unable to unpack the execution environment"):
        environment_at(str(tmp_path / "env.tar.gz"), "", tmp_path / "cache")
    assert os.listdir(outside) == []
    assert not (tmp_path / "cache" / "out").exists()


def test_what_nobody_uses_is_removed_when_another_is_unpacked(tmp_path):
    def used(number):
        archive = tmp_path / f"{number}.tar"
        with tarfile.open(archive, "w") as packed:
            for info, data in (
                member("number", data=bytes([number])),
                member("bin/python", tarfile.SYMTYPE, "/bin/sh"),
            ):
                packed.addfile(info, io.BytesIO(data))
        environment = environment_at(str(archive), "", tmp_path / "cache")
        return environment, Path(environment.python).parents[1]

    def grows_old(root):
        os.utime(root / ".eagleray-unpacked", (0, 0))

    (first, in_use), (second, unused), (third, recent) = used(1), used(2), used(3)
    again = used(1)[0]
    grows_old(in_use)
    grows_old(unused)
    del first, second, third
    new = used(4)[1]
    assert [root.exists() for root in (in_use, unused, recent, new)] == [True, False, True, True]
    again.let_go()
    used(5)
    assert not in_use.exists()
    assert used(2)[1].exists()


def test_a_closed_instance_lets_go_of_its_environment(tmp_path, environment, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with tarfile.open(tmp_path / "env.tar", "w") as archive:
        archive.add(environment, ".")
    instance = load(tmp_path, tmp_path / "env.tar")
    (lock,) = tmp_path.glob("eagleray-*/environments/*.lock")
    with lock.open("wb") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        instance.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


HEADERS = {
    "a time out of range": {"mtime": "1e30"},
    "a zero byte in a name": {"path": "da\0ta"},
    "half of a size": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"},
}
if sys.version_info < (3, 14):  # which leaves such an owner out
    HEADERS["a user out of range"] = {"uid": "99999999999999"}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_an_archive_with_damaged_headers_is_refused_and_leaves_nothing(tmp_path, headers):
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for (info, data), more in ((member("first", data=b"x"), {}), (member("data", data=b"x"), headers)):
            info.pax_headers = more
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(ModelLoadError, match="unable to unpack the execution environment"):
        environment_at(str(tmp_path / "env.tar.gz"), "", tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_an_archive_with_damaged_content_is_refused(tmp_path, compression):
    path = tmp_path / f"env.tar.{compression}"
    with tarfile.open(path, f"w:{compression}") as archive:
        info, data = member("data", data=os.urandom(1 << 20))
        archive.addfile(info, io.BytesIO(data))
    damaged = bytearray(path.read_bytes())
    damaged[1 << 19 : (1 << 19) + 4096] = bytes(4096)
    path.write_bytes(damaged)
    with pytest.raises(ModelLoadError, match="unable to unpack the execution environment"):
        environment_at(str(path), "", tmp_path / "cache")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("/no/such/env.tar.gz", "the execution environment '/no/such/env.tar.gz' does not exist"),
        ("EMPTY", "the execution environment 'EMPTY' has no 'bin/python'"),
        ("CLOSED", "'bin/python' of the execution environment 'CLOSED' cannot be executed where it is"),
        ("DAMAGED", "unable to unpack the execution environment 'DAMAGED': file could not be opened successfully"),
        ("BARE", "the process of model instance 'echo_0' needs NumPy, which its execution environment does not have"),
    ],
    ids=["missing", "no Python", "not executable", "damaged", "no NumPy"],
)
def test_what_is_wrong_with_an_environment_is_said(tmp_path, value, reason):
    paths = {name: str(tmp_path / name) for name in ("EMPTY", "CLOSED", "DAMAGED", "BARE")}
    Path(paths["EMPTY"]).mkdir()
    python = Path(paths["CLOSED"], "bin/python")
    python.parent.mkdir(parents=True)
    python.touch(mode=0o644)
    Path(paths["DAMAGED"]).write_bytes(b"no archive")
    if value == "BARE":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", paths["BARE"]], check=True)
    with pytest.raises(ModelLoadError) as raised:
        load(tmp_path, paths.get(value, value))
    for name, path in paths.items():
        reason = reason.replace(name, path)
    assert raised.value.reason.startswith(reason)
