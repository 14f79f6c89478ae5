"""Several repositories on one server, in explicit mode, with models of the same name in two of them."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from repository_loader.namespaces import identifier
from tests.app.metrics.scraped import samples
from tests.e2e.tagged_models import TAGGED_CONFIG, tag, write_tagged
from tests.hostile.watch import grpc_address
from tests.serving import EAGLERAY, Answer, Server, run, tensor, wait_until

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="has a server of its own: make soak")

FLAGS = ("--model-control-mode=explicit", "--model-namespacing", "--num-cpus=4", "--no-dashboard")


def write_pipe(root: Path, name: str, step: str) -> None:
    (root / name / "1").mkdir(parents=True)
    mapped = 'input_map { key: "X" value: "X" } output_map { key: "TAG" value: "TAG" }'
    scheduling = f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1 {mapped} }} }}'
    tensors = TAGGED_CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    (root / name / "config.pbtxt").write_text(f"{tensors}\n{scheduling}")


CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            call = pb_utils.InferenceRequest(model_name="tagged", inputs=request.inputs(), requested_output_names=["TAG"])
            called = call.exec()
            answers.append(pb_utils.InferenceResponse(called.output_tensors(), called.error()))
        return answers
"""


def write_caller(root: Path, name: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1/model.py").write_text(CALLER)
    (root / name / "config.pbtxt").write_text(TAGGED_CONFIG)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two with a model `tagged` each, and an ensemble of it."""
    first, second = (tmp_path_factory.mktemp("repositories") / name for name in ("a", "b"))
    for number, root in enumerate((first, second), 1):
        write_tagged(root, "tagged", str(number))
        write_pipe(root, f"pipe_{root.name}", "tagged")
        write_caller(root, f"calls_{root.name}")
    return first, second


@pytest.fixture(scope="module")
def server(repositories: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    first, second = repositories
    log = tmp_path_factory.mktemp("repositories-log") / "log"
    started = Server(
        first, log, "--model-repository", str(second), *FLAGS, "--load-model", "pipe_*", "--load-model", "calls_*"
    )
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def ask(server: Server, name: str) -> Answer:
    return server.infer(name, tensor("X", "INT32", [1], [0]))


def control(server: Server, name: str, verb: str) -> None:
    answer = server.post(f"/v2/repository/models/{name}/{verb}")
    assert answer.status == 200, answer.body


def states(server: Server, name: str) -> list[str | None]:
    return [row.get("state") for row in server.post("/v2/repository/index").json if row["name"] == name]


def command(server: Server, verb: str, *arguments: str) -> str:
    done = run(EAGLERAY, "repository", verb, *arguments, "--url", server.address)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_repository_is_registered_and_unregistered_though_the_controller_dies(server: Server, tmp_path: Path) -> None:
    write_tagged(tmp_path, "later", "7")
    write_tagged(tmp_path, "folder", "8")
    assert server.post("/v2/repository/models/later/load").status == 500
    command(server, "register", str(tmp_path), "--name", "folder=extra")
    server.kill_controller()
    control(server, "later", "load")
    control(server, "extra", "load")
    assert (tag(ask(server, "later")), tag(ask(server, "extra"))) == (7, 8)
    assert f"\n{tmp_path}  folder=extra\n" in command(server, "list")
    assert states(server, "folder") == []
    command(server, "unregister", str(tmp_path))
    server.kill_controller()
    assert server.post("/v2/repository/models/folder/load").status == 500
    assert (tag(ask(server, "later")), tag(ask(server, "extra"))) == (7, 8)


def test_what_is_no_repository_is_not_registered(server: Server, tmp_path: Path) -> None:
    def refused(verb: str, repository: object, **more: object) -> tuple[int, str]:
        answer = server.post(f"/v2/repository/{verb}", {"repository": repository, **more})
        return answer.status, answer.error

    missing, known = str(tmp_path / "missing"), str(server.repository)
    assert refused("register", missing) == (400, f"failed to register '{missing}', repository not found")
    assert refused("register", known) == (400, f"model repository '{known}' has already been registered")
    assert refused("unregister", missing) == (400, f"failed to unregister '{missing}', repository not found")
    assert refused("register", "models")[0] == refused("register", 1)[0] == 400
    assert refused("register", str(tmp_path), names={"m": "../m"})[0] == 400


def test_ensembles_of_two_repositories_have_models_of_the_same_name(
    server: Server, repositories: tuple[Path, Path]
) -> None:
    assert (tag(ask(server, "pipe_a")), tag(ask(server, "pipe_b"))) == (1, 2)
    assert states(server, "tagged") == ["READY", "READY"]
    answers = [tag(ask(server, identifier("tagged", str(repository)))) for repository in repositories]
    assert answers == [1, 2]


def test_models_call_those_of_their_own_repository_first(server: Server, tmp_path: Path) -> None:
    assert (tag(ask(server, "calls_a")), tag(ask(server, "calls_b"))) == (1, 2)
    write_caller(tmp_path, "calls_c")
    command(server, "register", str(tmp_path))
    control(server, "calls_c", "load")
    answer = ask(server, "calls_c")
    assert answer.error.startswith("There are 2 identifiers of model 'tagged' in global map")
    control(server, "calls_c", "unload")
    command(server, "unregister", str(tmp_path))


def test_metrics_have_the_name_of_a_model_and_its_namespace(server: Server, repositories: tuple[Path, Path]) -> None:
    found = samples(server.metrics_text(), model="tagged", version="1")
    assert {
        dict(labels)["namespace"] for (name, labels), _ in found.items() if name == "nv_inference_request_success"
    } == {str(repository) for repository in repositories}
    assert samples(server.metrics_text(), model="pipe_a", namespace=str(repositories[0]))


def test_a_request_for_a_name_of_two_is_refused_in_tritons_words(server: Server) -> None:
    error = (
        "There are 2 identifiers of model 'tagged' in global map, model namespace must be provided to resolve "
        "ambiguity."
    )
    answer = ask(server, "tagged")
    assert (answer.status, answer.error) == (400, error)
    assert server.get("/v2/models/tagged").error == error
    client = grpc_client.InferenceServerClient(grpc_address(server.log()))
    with pytest.raises(InferenceServerException) as refused:
        client.get_model_metadata("tagged")
    client.close()
    assert (refused.value.status(), refused.value.message()) == ("StatusCode.INVALID_ARGUMENT", error)


def test_unload_and_load_of_a_name_are_for_all_that_have_it(server: Server) -> None:
    control(server, "tagged", "unload")
    assert ask(server, identifier("tagged", str(server.repository))).status == 404
    wait_until(lambda: states(server, "tagged") == ["UNAVAILABLE", "UNAVAILABLE"], "both unloaded")
    assert ask(server, "pipe_a").status != 200
    control(server, "tagged", "load")
    assert states(server, "tagged") == ["READY", "READY"]
    assert (tag(ask(server, "pipe_a")), tag(ask(server, "pipe_b"))) == (1, 2)


def test_what_one_repository_has_alone_is_known_by_its_name_and_by_identifiers_when_another_has_it_too(
    server: Server, repositories: tuple[Path, Path]
) -> None:
    _, second = repositories
    control(server, "tagged", "unload")
    shutil.rmtree(second / "tagged")
    control(server, "tagged", "load")
    assert tag(ask(server, "tagged")) == 1
    assert (tag(ask(server, "pipe_a")), tag(ask(server, "pipe_b"))) == (1, 1)
    write_tagged(second, "tagged", "3")
    control(server, "tagged", "load")
    assert ask(server, "tagged").status == 400
    assert (tag(ask(server, "pipe_a")), tag(ask(server, "pipe_b"))) == (1, 3)
