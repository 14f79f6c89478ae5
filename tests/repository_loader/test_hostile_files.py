"""Whatever a file holds, reading it ends in a value or in the one error that the reader promises."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repository_loader.config_text import MAX_CONFIG_BYTES, parse_config_text
from repository_loader.onnx_graph import OnnxFileError, read_onnx_graph
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.repository_loader.repositories import BATCHING_ONNX, PYTHON_MODEL, TENSORS, python_model, write

WORDS = st.sampled_from(
    [
        *"{}[]<>:,;\"'#\n ",
        "name",
        "input",
        "dims",
        "instance_group",
        "rate_limit_resources",
        "model_repository_agents",
        "agents",
        "kind",
        "parameters",
        "key",
        "value",
        "cc_model_filenames",
        "ensemble_scheduling",
        "step",
        "max_batch_size",
        "count",
        "reshape",
        '"a"',
        "1",
        "-1",
        "\\",
        "é",
    ]
)


@given(st.lists(WORDS, max_size=40).map(" ".join) | st.text(max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    read = parse_config_text(text.encode("utf-8", "surrogatepass"), "c")
    assert (read.config is None) == any(finding.severity == "error" for finding in read.findings)
    lines = text.split("\n")
    for finding in read.findings:
        assert 1 <= finding.line <= len(lines) + 1
        assert finding.column >= 1


@given(st.lists(WORDS, max_size=30).map(" ".join))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_configuration_makes_a_model_or_a_failure(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"m/1/model.py": PYTHON_MODEL, "m/config.pbtxt": f"{TENSORS} {text}"})
    model = load_repositories([root], LoaderOptions(), None).models["m"]
    assert (model.failure is None) == bool(model.packages)
    assert not (model.failure or "").startswith("reading model")


@given(st.integers(0, len(BATCHING_ONNX) - 1), st.integers(0, 255))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_an_onnx_file_is_one_kind_of_error(tmp_path: Path, index: int, byte: int) -> None:
    damaged = bytearray(BATCHING_ONNX)
    damaged[index] = byte
    (tmp_path / "model.onnx").write_bytes(damaged)
    try:
        read_onnx_graph(str(tmp_path))
    except OnnxFileError:
        pass


def test_folders_within_folders_without_end_are_their_own_models_fault_alone(tmp_path: Path) -> None:
    root = write(tmp_path, {**python_model("a"), **python_model("deep"), f"deep/{'d/' * 150}": None})
    models = load_repositories([root], LoaderOptions(), None).models
    assert models["a"].failure is None
    assert "there are folders in more than 100 others" in str(models["deep"].failure)


LARGE = {
    "aliases": 'rate_limit_resources { name: "a" }\n',
    "adjacent strings": '"a"',
    "map entries": 'parameters { key: "k" value { string_value: "v" } }\n',
    "open braces": "{",
    "open messages": "input {",
    "quotes": '"\\',
    "comments": "#\n",
}


@pytest.mark.parametrize("unit", LARGE.values(), ids=LARGE)
def test_the_largest_file_is_read_in_seconds(unit: str) -> None:
    text = ("name: " + unit * (MAX_CONFIG_BYTES // len(unit)))[:MAX_CONFIG_BYTES]
    started_s = time.process_time()
    parse_config_text(text.encode(), "c")
    assert time.process_time() - started_s < 15


def test_a_model_with_thousands_of_warnings_is_read_in_seconds(tmp_path: Path) -> None:
    samples = 'model_warmup { name: "without its input" }\n' * 10_000
    root = write(tmp_path, {"m/1/model.py": PYTHON_MODEL, "m/config.pbtxt": f'backend: "python" {TENSORS}\n{samples}'})
    started_s = time.process_time()
    (model,) = load_repositories([root], LoaderOptions(), None).models.values()
    assert len(model.findings) >= 10_000
    assert time.process_time() - started_s < 10


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.pbtxt", "1/model.py", "1/model.onnx", "labels.txt"])
@pytest.mark.parametrize("is_pipe", [True, False], ids=["pipe", "device"])
def test_a_pipe_or_a_device_fails_its_model_and_no_other(tmp_path: Path, name: str, is_pipe: bool) -> None:
    root = Path(write(tmp_path, python_model("good") | python_model("m")))
    path = root / "m" / name
    path.unlink(missing_ok=True)
    if is_pipe:
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    models = load_repositories([str(root)], LoaderOptions(), None).models
    assert models["m"].failure == f"the files of model 'm' are not read: '{name}' is a pipe or a device"
    assert models["good"].failure is None
