"""Models of the same name in several repositories, with `--model-namespacing`."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.namespaces import identifier, meant_by, shared_name
from repository_loader.repository import choose_models, load_repositories
from repository_loader.snapshot import LoaderOptions, Override, Snapshot
from tests.repository_loader.repositories import TENSORS, python_model, write

OPTIONS = LoaderOptions(namespacing=True)


def ensemble(name: str, *steps: str) -> dict[str, str | bytes | None]:
    """Return an ensemble of one or two steps, one behind the other."""
    tensors = ["X", *(f"t{index}" for index in range(1, len(steps))), "Y"]
    text = "".join(
        f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "X" value: "{tensors[index]}" }} '
        f'output_map {{ key: "Y" value: "{tensors[index + 1]}" }} }}\n'
        for index, step in enumerate(steps)
    )
    config = f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {text} }}'
    return {f"{name}/config.pbtxt": config, f"{name}/1": None}


@pytest.fixture
def repositories(tmp_path: Path) -> list[str]:
    """`m` and `pipe` are in both of the first two, `single` in the second only."""
    first = write(tmp_path / "a", {**python_model("m"), **ensemble("pipe", "m")})
    second = write(tmp_path / "b", {**python_model("m"), **python_model("single"), **ensemble("pipe", "m", "single")})
    third = write(tmp_path / "c", {**ensemble("borrows", "single"), **ensemble("doubts", "m")})
    return [first, second, third]


def steps(snapshot: Snapshot, name: str) -> list[str]:
    config = snapshot.models[name].packages[0].config
    return [step.model_name for step in config.ensemble_scheduling.step]


def test_both_are_served_and_an_ensemble_takes_its_steps_from_its_own_repository_first(
    repositories: list[str],
) -> None:
    snapshot = load_repositories(repositories, OPTIONS, None)
    m_a, m_b = identifier("m", repositories[0]), identifier("m", repositories[1])
    pipe_a, pipe_b = identifier("pipe", repositories[0]), identifier("pipe", repositories[1])
    assert {name: model.failure for name, model in snapshot.models.items()} == {
        "borrows": None,
        "doubts": "ensemble doubts contains models that are not available or ambiguous: m",
        m_a: None,
        m_b: None,
        pipe_a: None,
        pipe_b: None,
        "single": None,
    }
    assert (steps(snapshot, pipe_a), steps(snapshot, pipe_b)) == ([m_a], [m_b, "single"])
    assert steps(snapshot, "borrows") == ["single"]
    assert snapshot.models[m_a].packages[0].model_path == f"{repositories[0]}/m"
    assert snapshot.models[m_b].packages[0].config.name == "m"


def test_a_name_stands_for_all_that_share_it(repositories: list[str]) -> None:
    both = {identifier("m", repository) for repository in repositories[:2]}
    assert set(load_repositories(repositories, OPTIONS, None, only=["m"]).models) == both
    one = identifier("m", repositories[1])
    assert set(load_repositories(repositories, OPTIONS, None, only=[one]).models) == {one}
    assert set(load_repositories(repositories, OPTIONS, None, only=[identifier("m", "/none")]).models) == set()
    assert set(choose_models(repositories, OPTIONS, ["m", "sin*", "missing"])) == both | {"single", "missing"}
    assert set(choose_models(repositories, OPTIONS, ["m*"])) == both


def test_a_broken_one_leaves_the_other_alone(repositories: list[str], tmp_path: Path) -> None:
    write(tmp_path / "b", {"m/config.pbtxt": "foo: 1"})
    models = load_repositories(repositories, OPTIONS, None).models
    assert models[identifier("m", repositories[0])].failure is None
    assert "foo" in str(models[identifier("m", repositories[1])].failure)


@pytest.mark.parametrize(
    ("repository", "tail"),
    [
        ("/srv/models", "models"),
        ("s3://bucket/team a/", "team_a"),
        ("https://host/models.zip?token=secret", "models.zip"),
        ("s3://key:secret@host", "host"),
        ("/", ""),
        ("/srv/" + "x" * 100, "x" * 40),
    ],
)
def test_an_identifier_tells_the_repository_and_no_secret(repository: str, tail: str) -> None:
    name = identifier("a@b m", repository)
    assert name.rpartition("-")[0] == f"a@b m@{tail}"
    assert shared_name(name) == "a@b m"
    assert identifier("m", repository) != identifier("m", repository + "x")


def test_a_name_that_is_known_means_itself() -> None:
    known = [identifier("m", "/a"), identifier("m", "/b"), identifier("m@x", "/a"), "other"]
    assert meant_by("m", known, namespacing=True) == sorted(known[:2])
    assert meant_by("m", ["m", *known], namespacing=True) == ["m"]
    assert meant_by("unknown", known, namespacing=True) == []


def test_without_namespaces_a_name_that_looks_like_an_identifier_is_one_like_any_other(tmp_path: Path) -> None:
    dated = "m@prod-20240115"
    repository = write(tmp_path, {**python_model("m"), **python_model(dated)})
    given = {"m": Override(text_format.Parse(f'backend: "python" max_batch_size: 8 {TENSORS}', ModelConfig()))}
    read = load_repositories([repository], LoaderOptions(), None, overrides=given).models
    sizes = {name: model.config and model.config.max_batch_size for name, model in read.items()}
    assert sizes == {"m": 8, dated: 0}
    (tmp_path / "m").rename(tmp_path / "other")
    assert not load_repositories([repository], LoaderOptions(), None, only=["m"]).models
    assert choose_models([repository], LoaderOptions(), ["m", "?"]) == ["m"]
