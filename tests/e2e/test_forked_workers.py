"""The processes of a server come from its fork server, and do without it."""

import shutil
from pathlib import Path

import psutil

from tests.repositories import write_small_models
from tests.serving import Server, tensor, title_of, wait_until

REPLICA = "ray::ServeReplica:"
FLOATS = tensor("X", "FP32", [1], [1.5])


def fork_servers(server: Server) -> list[psutil.Process]:
    """Return those that there are; a worker goes by the same title until Ray gives it its own."""
    (raylet,) = [each for each in server.descendants() if each.name() == "raylet"]
    return [each for each in raylet.children() if "worker_launcher.py" in title_of(each)]


def test_what_was_forked_outlives_the_fork_server_and_ends_with_all_others(tmp_path: Path) -> None:
    shutil.copytree(write_small_models(tmp_path / "small") / "floats", tmp_path / "repository" / "floats")
    flags = ("--placement", "isolated", "--num-cpus", "4", "--no-dashboard")
    server = Server(tmp_path / "repository", tmp_path / "log", *flags)
    try:
        server.wait_ready()
        (first,) = fork_servers(server)
        started = {*server.descendants()}
        assert "ray::IDLE" not in {title_of(each) for each in started}
        replicas = [each for each in started if title_of(each).startswith(REPLICA)]
        assert len(replicas) >= 3 and {each.ppid() for each in replicas} == {first.pid}
        (model,) = [each for each in replicas if "floats" in title_of(each)]
        first.kill()
        assert server.infer("floats", FLOATS).status == 200
        model.kill()
        assert server.infer("floats", FLOATS).status == 200
        (second,) = wait_until(lambda: fork_servers(server), "another fork server")
        wait_until(lambda: [each for each in second.children() if "floats" in title_of(each)], "a replica of its own")
        started.update(server.descendants())
        server.stop()
        server.assert_none_left(started)
    finally:
        server.kill()
