"""Serve, or a replica, answers the controller with errors for a while: it goes on, and so does everybody else."""

import threading
from pathlib import Path

import pytest

from tests.controller_steps.steps import Steps
from tests.repositories import write_tagged_onnx
from tests.serving import Answer, Server, tensor, title_of, wait_until

CONTROL = ("--model-control-mode", "explicit", "--load-model", "first", "--strict-readiness=false")
FLAGS = ("--num-cpus", "2", "--no-dashboard", "--ingresses-per-node", "1", *CONTROL)
X = tensor("X", "INT32", [1], [1])


def controllers(server: Server) -> set[int]:
    return {process.pid for process in server.descendants() if "RepositoryController" in title_of(process)}


@pytest.mark.timeout(300)
def test_errors_of_serve_or_of_a_replica_end_no_task_of_the_controller(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for number, name in enumerate(("first", "status", "describe")):
        write_tagged_onnx(repository, name, 1 + number)
    (tmp_path / "steps").mkdir()
    steps = Steps(tmp_path / "steps")
    server = Server(repository, tmp_path / "log", *FLAGS, env=steps.env())
    try:
        server.wait_ready()
        (controller,) = controllers(server)
        for name in ("status", "describe"):
            answers: list[Answer] = []
            loading = threading.Thread(target=lambda: answers.append(server.post(load_path(name))))  # noqa: B023
            with steps.failing(name) as count:
                loading.start()
                wait_until(lambda: count() >= 3, f"three failures of {name}")
                assert server.infer("first", X).status == 200
                assert server.get("/v2/models/first/ready").status == 200
                assert not answers
            loading.join(60)
            assert [answer.status for answer in answers] == [200]
            assert server.infer(name, X).status == 200
        assert controllers(server) == {controller}
        server.stop()
    finally:
        server.kill()


def load_path(name: str) -> str:
    return f"/v2/repository/models/{name}/load"
