"""Explicit mode: what is loaded again changes, and nobody who asks it notices."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.e2e.tagged_models import STAGED, TAGGED_CONFIG, Asking, ask, tag, write_tagged
from tests.serving import Server, wait_until

ISOLATED = 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }'
ALL = " version_policy { all {} }"


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
