"""Explicit mode: what is loaded again changes, and nobody who asks it notices."""

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.e2e.tagged_models import STAGED, TAGGED_CONFIG, Asking, ask, tag, write_tagged
from tests.serving import CONTROLLER, Server, title_of, wait_until

ISOLATED = 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }'
ALL = " version_policy { all {} }"
TAKEN_OVER_S = 3.0
"""How long what a new controller says is looked at."""


def test_a_reload_under_load_fails_no_request_and_the_new_answers_come_after_the_old(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    write_tagged(repository, "reloaded", "1")
    triton.load_model("reloaded")
    with Asking(server, "reloaded", count=1).running() as asked:
        for number in (2, 3):
            write_tagged(repository, "reloaded", str(number))
            triton.load_model("reloaded")
    asked.assert_served()
    tags = [tag(answer) for answer in asked.answers]
    assert tags == sorted(tags) and set(tags) == {1, 2, 3}


def test_a_new_version_is_ready_before_the_old_one_goes(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    write_tagged(repository, "versions", "1")
    triton.load_model("versions")
    with Asking(server, "versions", count=1).running() as asked:
        write_tagged(repository, "versions", "2", version=2)
        triton.load_model("versions")
        shutil.rmtree(repository / "versions/2")
        triton.load_model("versions")
    asked.assert_served()
    tags = [tag(answer) for answer in asked.answers]
    assert [number for number, before in zip(tags, [0, *tags], strict=False) if number != before] == [1, 2, 1]
    wait_until(lambda: server.states("versions").get("2") == ("UNAVAILABLE", "unloaded"), "version 2 is unloaded")
    assert server.states("versions")["1"] == ("READY", "")


@pytest.mark.parametrize("broken", ["nonesuch", "__import__('os').kill(__import__('os').getpid(), 9)"])
def test_what_served_serves_on_when_its_successor_does_not_load(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, broken: str
) -> None:
    write_tagged(repository, "fragile", "1")
    triton.load_model("fragile")
    dies = "kill" in broken
    with Asking(server, "fragile", count=0 if dies else 2).running() if not dies else _nobody() as asked:
        write_tagged(repository, "fragile", "2", version=2)
        write_tagged(repository, "fragile", broken, version=3, config="version_policy { all {} }")
        with pytest.raises(InferenceServerException) as failed:
            triton.load_model("fragile")
    assert str(failed.value.message()).startswith(
        "load failed for model 'fragile': version 3 is at UNAVAILABLE state: "
    )
    shutil.rmtree(repository / "fragile")
    if asked is not None:
        asked.assert_served()
        assert {tag(answer) for answer in asked.answers} == {1}
    with server.client() as client:
        assert tag(ask(client, "fragile")) == 1
    assert server.states("fragile")["1"] == ("READY", "")
    triton.unload_model("fragile")
    wait_until(
        lambda: "fragile" not in {row["name"] for row in triton.get_model_repository_index()},
        "the index is without a model that was unloaded and that no repository has",
    )


@contextmanager
def _nobody() -> Iterator[None]:
    yield None


@pytest.mark.parametrize("config", ["", ISOLATED], ids=["packed", "isolated"])
def test_the_step_of_an_ensemble_gets_no_version_before_the_whole_load_has_succeeded(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, config: str
) -> None:
    step = "staged_away" if config else "staged"
    ensemble = f"{step}_ensemble"
    write_tagged(repository, step, "1", config=config)
    (repository / ensemble / "1").mkdir(parents=True)
    (repository / ensemble / "config.pbtxt").write_text(STAGED % step)
    triton.load_model(ensemble)
    with Asking(server, ensemble, count=1).running() as asked:
        write_tagged(repository, step, "2", version=2)
        write_tagged(repository, step, "__import__('time').sleep(2) or nonesuch", version=3, config=config + ALL)
        with pytest.raises(InferenceServerException, match="version 3 is at UNAVAILABLE state"):
            triton.load_model(step)
        write_tagged(repository, step, "3", version=3, config=config + ALL)
        failed_count = len(asked.answers)
        triton.load_model(step)
    asked.assert_served()
    tags = [tag(answer) for answer in asked.answers]
    assert set(tags[:failed_count]) == {1} and set(tags) == {1, 3} and tags == sorted(tags)


def test_instances_and_versions_change_in_place(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    """Another version policy leaves what serves alone; other instances are ready before the old ones go."""
    write_tagged(repository, "switched", "__import__('random').randrange(1 << 30)")
    triton.load_model("switched")
    with server.client() as client:
        before = tag(ask(client, "switched"))
        write_tagged(repository, "switched", "7", version=2, config="version_policy { specific { versions: [1, 2] } }")
        triton.load_model("switched")
        assert tag(ask(client, "switched", "1")) == before
        assert tag(ask(client, "switched")) == 7
        policy = "version_policy { specific { versions: 1 } }"
        (repository / "switched/config.pbtxt").write_text(TAGGED_CONFIG + policy)
        triton.load_model("switched")
        wait_until(lambda: tag(ask(client, "switched")) == before, "an answer of the process that served before")
        group = "instance_group { count: 2 kind: KIND_CPU }"
        (repository / "switched/config.pbtxt").write_text(TAGGED_CONFIG + policy + group)
        with Asking(server, "switched").running() as asked:
            triton.load_model("switched")
            wait_until(lambda: len({tag(answer) for answer in asked.answers[-100:]} - {before}) == 2, "two instances")
        asked.assert_served()
        assert triton.get_model_config("switched")["instance_group"][0]["count"] == 2


def test_another_number_of_replicas_loads_nothing_anew(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    """What the replicas know that stay, as of their sequences, stays too."""
    replicas = 'parameters { key: "eagleray.replicas" value { string_value: "%d" } }'
    write_tagged(repository, "scaled", "__import__('random').randrange(1 << 30)", config=replicas % 1)
    triton.load_model("scaled")
    with server.client() as client:
        before = tag(ask(client, "scaled"))
    (repository / "scaled/config.pbtxt").write_text(TAGGED_CONFIG + replicas % 2)
    with Asking(server, "scaled").running() as asked:
        triton.load_model("scaled")
        wait_until(lambda: len({tag(answer) for answer in asked.answers[-100:]}) == 2, "two replicas")
    asked.assert_served()
    assert before in {tag(answer) for answer in asked.answers[-100:]}
    assert triton.get_model_config("scaled")["parameters"]["eagleray.replicas"]["string_value"] == "2"


PAIR = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "A" data_type: TYPE_INT32 dims: 1 }
output { name: "B" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step {
    model_name: "%(name)s_a" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "%(output)s" value: "A" }
  }
  step {
    model_name: "%(name)s_b" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "%(output)s" value: "B" }
  }
}
"""


@pytest.mark.parametrize("placement", ["packed", "embedded"])
def test_an_ensemble_and_steps_in_other_processes_change_together(
    server: Server, repository: Path, placement: str
) -> None:
    """Outputs of the steps are renamed; the second of them is loaded only when the test says so."""
    name = f"pair_{placement}"
    gate = repository.parent / f"{name}.gate"
    os.mkfifo(gate)

    def write(tag: str, output: str, then: str = "") -> None:
        for step in (f"{name}_a", f"{name}_b"):
            write_tagged(repository, step, tag)
            (repository / step / "config.pbtxt").write_text(TAGGED_CONFIG.replace("TAG", output) + ISOLATED)
            model = repository / step / "1/model.py"
            model.write_text(model.read_text().replace('"TAG"', f'"{output}"') + (then if step.endswith("_b") else ""))
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        placed = f'parameters {{ key: "eagleray.placement" value {{ string_value: "{placement}" }} }}'
        (repository / name / "config.pbtxt").write_text(PAIR % {"name": name, "output": output} + placed)

    def until_one_step_has_changed() -> None:
        with server.client() as client:
            wait_until(lambda: tag(ask(client, f"{name}_a")) != served[-1], "the first step is loaded")
            count = len(asked.answers)
            wait_until(lambda: len(asked.answers) > count + 20, "answers between the two")

    served = [1]
    load = f"/v2/repository/models/{name}/load"
    write("1", "TAG")
    assert server.post(load).status == 200
    with Asking(server, name).running() as asked, ThreadPoolExecutor(1) as other:
        write("2", "MARK", f"open({str(gate)!r}).read()")
        loading = other.submit(server.post, load)
        with gate.open("w"):
            until_one_step_has_changed()
        assert loading.result().status == 200
        served.append(2)
        write("3", "SIGN", f"open({str(gate)!r}).read()\nraise RuntimeError('nonesuch')")
        failing = other.submit(server.post, load)
        with gate.open("w"):
            until_one_step_has_changed()
        assert "nonesuch" in failing.result().error
    asked.assert_served()
    answers = [tuple(output["data"][0] for output in answer.json["outputs"]) for answer in asked.answers]
    assert set(answers) == {(1, 1), (2, 2)} and answers[-1] == (2, 2)
    with server.client() as client:
        wait_until(lambda: tag(ask(client, f"{name}_a")) == 2, "the first step as it was, whatever its files are")


@pytest.mark.parametrize("placement", ["packed", "embedded"])
def test_a_slow_load_holds_up_no_other_model_of_its_process(server: Server, repository: Path, placement: str) -> None:
    placed = f'parameters {{ key: "eagleray.placement" value {{ string_value: "{placement}" }} }}'
    slow, quick = f"slow_{placement}", f"quick_{placement}"
    gate = repository.parent / f"{slow}.gate"
    write_tagged(repository, slow, "2", config=placed)
    with (repository / slow / "1/model.py").open("a") as model:
        model.write(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n")
    write_tagged(repository, quick, "1", config=placed)
    with ThreadPoolExecutor(1) as other, server.client() as client:
        loading = other.submit(server.post, f"/v2/repository/models/{slow}/load")
        try:
            wait_until(lambda: server.states(slow) == {"1": ("LOADING", "")}, "it is being loaded")
            assert server.post(f"/v2/repository/models/{quick}/load").status == 200
            assert tag(ask(client, quick)) == 1
            assert server.post(f"/v2/repository/models/{quick}/unload").status == 200
            wait_until(lambda: server.states(quick) == {"1": ("UNAVAILABLE", "unloaded")}, "the other is unloaded")
            assert server.states(slow) == {"1": ("LOADING", "")} and not loading.done()
        finally:
            gate.touch()
        assert loading.result().status == 200
        assert tag(ask(client, slow)) == 2


def test_what_serves_is_ready_while_its_replica_is_replaced_also_for_a_controller_that_takes_over(
    server: Server, repository: Path
) -> None:
    """Serve says of the deployment that it is UPDATING until the new replica has loaded the model."""
    reserved = ' parameters { key: "eagleray.num_cpus" value { string_value: "%s" } }'
    gate = repository.parent / "replaced.gate"
    write_tagged(repository, "replaced", "1", config=ISOLATED + reserved % "0.1")
    assert server.post("/v2/repository/models/replaced/load").status == 200
    write_tagged(repository, "replaced", "2", config=ISOLATED + reserved % "0.2")
    with (repository / "replaced/1/model.py").open("a") as model:
        model.write(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n")

    def pids(title: str) -> list[int]:
        return [each.pid for each in server.descendants() if title_of(each).startswith(title)]

    def told() -> tuple[int, int, dict[str, tuple[str, str]]]:
        ready = server.get("/v2/health/ready").status, server.get("/v2/models/replaced/ready").status
        return *ready, server.states("replaced")

    before = told()
    with ThreadPoolExecutor(1) as other, server.client() as client:
        loading = other.submit(server.post, "/v2/repository/models/replaced/load")
        try:
            wait_until(lambda: len(pids("ray::ServeReplica:replaced:")) == 2, "a replica that is to take its place")
            (old,) = pids(CONTROLLER)
            server.kill_controller()
            wait_until(lambda: set(pids(CONTROLLER)) - {old}, "a new controller", 60.0)
            seen, until_s = [], time.monotonic() + TAKEN_OVER_S
            while time.monotonic() < until_s:
                seen.append(told())
                assert tag(ask(client, "replaced")) == 1
            assert [each for each in seen if each != before] == [] and not loading.done()
        finally:
            gate.touch()
        assert loading.result().status == 200
        assert tag(ask(client, "replaced")) == 2
