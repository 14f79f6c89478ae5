from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelVersionPolicy

from repository_loader.versions import (
    NoVersionError,
    find_versions,
    missing_versions,
    read_version_names,
    select_versions,
)


@pytest.mark.parametrize(
    ("names", "numbers", "warnings"),
    [
        (["1", "10", "2", "0"], (0, 1, 2, 10), ()),
        (["01"], (), ("ignore version directory '01' which contains leading zeros in its directory name",)),
        (["1abc"], (), ("ignore version directory '1abc' which fails to convert to integral number",)),
        (["-1"], (), ("ignore version directory '-1' which fails to convert to integral number",)),
        (["warmup", "initial_state", "configs", ".cache", "__pycache__"], (), ()),
        (["9223372036854775807", "9223372036854775808"], (2**63 - 1,), None),
        (["1" * 5000], (), None),
    ],
)
def test_tells_versions_by_name(names: list[str], numbers: tuple[int, ...], warnings: tuple[str, ...] | None) -> None:
    folders = read_version_names(names)
    assert folders.numbers == numbers
    assert warnings is None or folders.warnings == warnings


def test_a_version_that_cannot_be_looked_at_is_there(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").symlink_to("2")
    (tmp_path / "3").symlink_to("nowhere")
    assert find_versions(str(tmp_path)).numbers == (1, 2)


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        ("", (1, 3, 7)),
        ("latest { num_versions: 2 }", (3, 7)),
        ("latest { num_versions: 9 }", (1, 3, 7)),
        ("all { }", (1, 3, 7)),
        ("specific { versions: [ 3, 1, 5 ] }", (1, 3)),
    ],
)
def test_selects_versions(policy: str, selected: tuple[int, ...]) -> None:
    assert select_versions(text_format.Parse(policy, ModelVersionPolicy()), (1, 3, 7), "m") == selected


def test_selects_the_highest_version_without_a_policy() -> None:
    assert select_versions(None, (7, 1, 3), "m") == (7,)


@pytest.mark.parametrize(
    ("policy", "available"),
    [
        ("", ()),
        ("all {}", ()),
        ("specific { versions: 2 }", (1,)),
        ("latest { }", (1,)),
        ("latest { num_versions: 0 }", (1, 2)),
    ],
)
def test_refuses_a_policy_that_leaves_nothing(policy: str, available: tuple[int, ...]) -> None:
    with pytest.raises(NoVersionError) as caught:
        select_versions(text_format.Parse(policy, ModelVersionPolicy()), available, "m")
    assert str(caught.value) == "at least one version must be available under the version policy of model 'm'"


def test_names_specified_versions_that_are_missing() -> None:
    policy = text_format.Parse("specific { versions: [ 1, 5 ] }", ModelVersionPolicy())
    assert missing_versions(policy, (1, 2)) == (5,)
