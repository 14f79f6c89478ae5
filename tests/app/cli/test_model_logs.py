"""Which lines are a model's."""

import json
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from deployments.log.model_log import ModelLog
from tests.serving import EAGLERAY, environment, run, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "replica_digits_v1_abc.log").write_text("one\ntwo\n")
    (tmp_path / "replica_digits_v2_def.log").write_text("three\n")
    (tmp_path / "replica_eagleray-packed_models_xyz.log").write_text(
        "loaded 'small' version 1\nloaded 'other'\n"
        '{"message": "hello", "model": "small"}\n{"message": "hello", "model": "other"}\n'
    )
    return tmp_path


def test_the_lines_of_a_models_replicas(folder: Path) -> None:
    done = run(EAGLERAY, "logs", "digits", "--folder", str(folder))
    assert (done.returncode, sorted(done.stdout.splitlines()), done.stderr) == (0, ["one", "three", "two"], "")
    assert len(run(EAGLERAY, "logs", "digits", "--folder", str(folder), "--lines", "1").stdout.splitlines()) == 1
    lines = run(EAGLERAY, "logs", "digits", "--folder", str(folder), "--json").stdout.splitlines()
    assert {"file": "replica_digits_v2_def.log", "line": "three"} in map(json.loads, lines)


def test_following_ends_by_ctrl_c(folder: Path) -> None:
    command = [EAGLERAY, "logs", "digits", "--folder", str(folder), "--follow"]
    interruptible = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), preexec_fn=interruptible
    ) as following:
        assert following.stdout is not None
        lines = {following.stdout.readline() for _ in range(3)}
        following.send_signal(signal.SIGINT)
        rest, errors = following.communicate(timeout=30)
    assert (lines, rest, errors, following.returncode) == ({b"one\n", b"two\n", b"three\n"}, b"", b"", 0)


def test_a_server_of_the_environment_gives_way_to_what_the_line_says(folder: Path) -> None:
    env = environment(EAGLERAY_CLIENT_URL="http://127.0.0.1:1")
    done = run(EAGLERAY, "logs", "digits", "--folder", str(folder), env=env)
    assert (done.returncode, sorted(done.stdout.splitlines()), done.stderr) == (0, ["one", "three", "two"], "")
    done = run(EAGLERAY, "logs", "digits", "--url", "http://127.0.0.1:1", "--folder", str(folder))
    assert (done.returncode, "both exclude --follow and --folder" in done.stderr) == (2, True)


def test_of_a_packed_model_the_lines_that_name_it(folder: Path) -> None:
    done = run(EAGLERAY, "logs", "small", "--folder", str(folder))
    assert done.stdout.splitlines() == ["loaded 'small' version 1", '{"message": "hello", "model": "small"}']
    assert "has no process of its own" in done.stderr


def test_of_an_embedded_model_the_lines_of_the_ingress_that_name_it(folder: Path) -> None:
    (folder / "replica_eagleray_Ingress_abc.log").write_text(
        "loaded 'held' version 1\nloaded 'small'\nloaded 'other'\n"
    )
    done = run(EAGLERAY, "logs", "held", "--folder", str(folder))
    assert (done.returncode, done.stdout) == (0, "loaded 'held' version 1\n")
    assert "has no process of its own" in done.stderr
    assert run(EAGLERAY, "logs", "small", "--folder", str(folder)).stdout.startswith("loaded 'small' version 1\n")


def test_lines_command_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "replica_digits_v1_abc.log").write_text("INFO printed \x1b]52;c;ZXZpbA==\x07\n")
    done = run(EAGLERAY, "logs", "digits", "--folder", str(tmp_path))
    assert done.stdout == "INFO printed \\u001b]52;c;ZXZpbA==\\u0007\n"


def test_no_line_is_an_error(folder: Path) -> None:
    done = run(EAGLERAY, "logs", "nobody", "--folder", str(folder))
    told = f"no replica has logged a line that names 'nobody' in {folder}; the logs of other nodes are there"
    assert (done.returncode, done.stderr) == (1, f"Error: {told}\n")


def test_no_log_is_an_error(tmp_path: Path) -> None:
    done = run(EAGLERAY, "logs", "digits", "--folder", str(tmp_path))
    assert done.returncode == 1
    assert f"no replica has logged for 'digits' in {tmp_path}; the logs of other nodes are there" in done.stderr


def test_who_names_no_folder_is_told_which_one_it_was_and_of_others(tmp_path: Path) -> None:
    """The server may run on a Ray that started earlier, or elsewhere, as that of the unit of systemd."""
    done = run(EAGLERAY, "logs", "digits", env=environment(RAY_TMPDIR=str(tmp_path)))
    looked_in = tmp_path / "ray/session_latest/logs/serve"
    told = f"Error: no replica has logged for 'digits' in {looked_in}, where the Ray that started last here logs. "
    assert (done.returncode, done.stderr.startswith(told)) == (1, True), done.stderr
    assert all(way in done.stderr for way in ("--url", "--folder", "RAY_TMPDIR"))


def test_lines_are_followed_into_the_file_that_takes_the_place_of_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "replica_digits_v1_abc.log"
    path.write_text("before\n" * 100)
    lines: list[str] = []

    def follow() -> None:
        for _, line in ModelLog("digits", tmp_path).follow():
            lines.append(line)
            if line == "new":
                return

    def written() -> bool:
        with path.open("a") as file:
            file.write("here\n")
        return "here" in lines

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_until(written, "the follower")
    with path.open("a") as file:
        file.write("last\n")
    path.rename(tmp_path / f"{path.name}.1")
    path.write_text("new\n")
    thread.join(10)
    assert set(lines) == {"here", "last", "new"}
