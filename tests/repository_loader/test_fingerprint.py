"""What of a model has changed shows in the sizes and times of its files."""

import os
from pathlib import Path

import pytest

from repository_loader.fingerprint import take_fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("1/model.onnx", "2/model.onnx", "labels.txt", "config.pbtxt", "configs/big.pbtxt", "helper/code.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("1/model.onnx", {1}),
        ("2/model.onnx", {2}),
        ("labels.txt", {1, 2}),
        ("helper/code.py", {1, 2}),
        ("config.pbtxt", set()),
        ("configs/big.pbtxt", set()),
    ],
)
def test_a_change_concerns_the_versions_that_have_the_file(model: Path, name: str, versions: set[int]) -> None:
    before = take_fingerprint(str(model))
    (model / name).write_text("longer")
    after = take_fingerprint(str(model))
    assert before.whole != after.whole
    assert {number for number in (1, 2) if before.of_version(number) != after.of_version(number)} == versions


def test_time_alone_is_a_change_and_a_look_is_none(model: Path) -> None:
    before = take_fingerprint(str(model))
    assert take_fingerprint(str(model)) == before
    os.utime(model / "1/model.onnx", ns=(0, 0))
    assert take_fingerprint(str(model)).of_version(1) != before.of_version(1)


def test_what_an_import_leaves_behind_is_no_change(model: Path) -> None:
    before = take_fingerprint(str(model))
    (model / "1/__pycache__").mkdir()
    (model / "1/__pycache__/model.pyc").write_text("x")
    assert take_fingerprint(str(model)).whole == before.whole


def test_links_are_followed_and_may_lead_back(model: Path) -> None:
    (model / "1/loop").symlink_to(model)
    (model / "1/gone").symlink_to(model / "nowhere")
    before = take_fingerprint(str(model))
    (model / "1/gone").unlink()
    assert take_fingerprint(str(model)).of_version(1) != before.of_version(1)


def test_more_files_than_a_model_has_are_not_all_looked_at(model: Path) -> None:
    assert not take_fingerprint(str(model), max_files=6).problem
    (model / "1" / "everything").symlink_to("/")
    found = take_fingerprint(str(model), max_files=100)
    assert found.problem == "there are more than 100"
    assert len(found.files) == 101
