"""What becomes of models that a store does not give."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import read_models
from deployments.control.repository_watch import Changes
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.object_stores import Bucket, s3_bucket
from tests.repository_loader.repositories import python_model

FACTS = ClusterFacts((NodeFacts(4),))
NO_FILE_NAME = "n" * 300
"""What no disk takes."""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with s3_bucket(tmp_path) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def options_of(bucket: Bucket, cache: Path) -> ControllerOptions:
    return ControllerOptions(
        (f"{bucket.uri}/repo",),
        LoaderOptions(cache_dir=str(cache)),
        PlanSettings(),
        Limits(),
        repository_poll_s=15,
        repository_quiet_s=0,
    )


def test_a_polled_model_that_could_not_be_fetched_is_there_and_is_tried_again(bucket: Bucket, tmp_path: Path) -> None:
    files = {**python_model("good"), **python_model("broken"), f"broken/{NO_FILE_NAME}": "x"}
    bucket.put({f"repo/{path}": content for path, content in files.items()})
    options = options_of(bucket, tmp_path / "cache")
    desired = read_desired_state(options, FACTS)
    assert desired.snapshot.models["broken"].failure
    now_s = 0.0
    changes = Changes(options, lambda: now_s)
    assert changes.look(desired) == []
    now_s = 31.0
    assert changes.look(desired) == ["broken"]
    assert not changes.is_gone("broken")
    bucket.delete(*(f"repo/{path}" for path in files if path.startswith("broken")))
    assert changes.look(desired) == ["broken"]
    assert changes.is_gone("broken")


def test_the_log_says_why_a_model_stays_as_it_was_read_before(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put({f"repo/{path}": content for path, content in python_model("m").items()})
    options = options_of(bucket, tmp_path / "cache")
    desired, changes = read_desired_state(options, FACTS), Changes(options)
    bucket.put({f"repo/m/{NO_FILE_NAME}": "x"})
    for _ in range(2):  # the next look has nothing to add
        assert changes.look(desired) == []
    assert caplog.text.count("File name too long; model 'm' stays as it was read before") == 1
    caplog.clear()
    assert read_models(options, desired, "m", None).models["m"].packages
    assert "File name too long; model 'm' stays as it was read before" in caplog.text


def test_a_repository_is_one_however_its_address_is_spelled(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({f"repo/{path}": content for path, content in python_model("m").items()})
    options = options_of(bucket, tmp_path / "cache")
    (repository,) = options.repositories
    other = repository.replace("s3://", "S3://") + "/"
    desired = read_desired_state(replace(options, repositories=(repository, other)), FACTS)
    assert desired.runs("m")
    assert set(desired.repositories) == {repository}
