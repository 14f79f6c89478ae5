from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.model_files import ModelFileError, default_file, files_bytes, fill_backend, model_file
from tests.repository_loader.repositories import write


def config(text: str, name: str = "m") -> ModelConfig:
    return text_format.Parse(f'name: "{name}" {text}', ModelConfig())


DERIVED = {
    "platform": ('platform: "onnxruntime_onnx"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    "old platform": ('platform: "libtorch"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
    "backend": ('backend: "onnxruntime"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    "backend without a platform": ('backend: "python"', [], ("python", "", "model.py")),
    "backend without platforms beside one": (
        'backend: "python" platform: "onnxruntime_onnx"',
        ["model.onnx"],
        ("python", "onnxruntime_onnx", "model.py"),
    ),
    "both": ('backend: "pytorch" platform: "torch_aoti"', [], ("pytorch", "torch_aoti", "model.pt2")),
    "pytorch by its file": ('backend: "pytorch"', ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
    "tensorflow by its folder": (
        'backend: "tensorflow"',
        ["model.graphdef"],
        ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    ),
    "name stays": ('backend: "python" default_model_filename: "a.py"', [], ("python", "", "a.py")),
    "from model.plan": ("", ["model.plan"], ("tensorrt", "tensorrt_plan", "model.plan")),
    "from model.onnx": ("", ["model.onnx", "helper.py"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    "from model.py": ("", ["model.py"], ("python", "", "model.py")),
    "from model.xml": ("", ["model.xml", "model.bin"], ("openvino", "", "model.xml")),
    "from the configured file": ('default_model_filename: "b.onnx"', [], ("onnxruntime", "onnxruntime_onnx", "b.onnx")),
    "from the only file there is": ("", ["encoder.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    "unknown backend": ('backend: "mine"', [], ("mine", "", "model.mine")),
    "ensemble": ('platform: "ensemble"', ["model.onnx"], ("", "ensemble", "")),
}


@pytest.mark.parametrize(("text", "files", "expected"), DERIVED.values(), ids=DERIVED)
def test_derives_the_backend(tmp_path: Path, text: str, files: list[str], expected: tuple[str, str, str]) -> None:
    write(tmp_path, {f"1/{name}": "" for name in files})
    actual = config(text)
    fill_backend(actual, [str(tmp_path / "1")])
    assert (actual.backend, actual.platform, actual.default_model_filename) == expected


def test_takes_a_custom_backend_from_the_model_name() -> None:
    actual = config("", "net.mine")
    fill_backend(actual, [])
    assert (actual.backend, actual.default_model_filename) == ("mine", "model.mine")


@pytest.mark.parametrize("files", [[], ["readme.txt"], ["a.onnx", "b.pt"]])
def test_refuses_a_model_that_nothing_tells_the_backend_of(tmp_path: Path, files: list[str]) -> None:
    write(tmp_path, {f"1/{name}": "" for name in files})
    with pytest.raises(ModelFileError) as caught:
        fill_backend(config(""), [str(tmp_path / "1")])
    assert str(caught.value) == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


FILES = {
    "default": (["model.pt", "other.pt"], "model.pt", False),
    "the only one": (["tokenizer.pt", "vocab.txt"], "tokenizer.pt", True),
    "two others": (["a.pt", "b.pt"], "model.pt", False),
    "none": ([], "model.pt", False),
    "not one of the GPU files": (["big.pt", "small.pt"], "small.pt", True),
}


@pytest.mark.parametrize(("files", "name", "warns"), FILES.values(), ids=FILES)
def test_finds_the_model_file(tmp_path: Path, files: list[str], name: str, warns: bool) -> None:
    write(tmp_path, {f"1/{file}": "" for file in files})
    given = config('backend: "pytorch" cc_model_filenames { key: "9.0" value: "big.pt" }')
    fill_backend(given, [str(tmp_path / "1")])
    found, warning = default_file(given, str(tmp_path / "1"))
    assert (found, warning is not None) == (name, warns)


def test_a_named_file_is_never_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"1/other.pt": ""})
    assert default_file(config('default_model_filename: "mine.pt"'), str(tmp_path / "1")) == ("mine.pt", None)


@pytest.mark.parametrize(("capability", "name"), [(None, "model.plan"), ("7.5", "turing"), ("9.0", "model.plan")])
def test_picks_the_file_of_the_gpu(capability: str | None, name: str) -> None:
    given = config('default_model_filename: "model.plan" cc_model_filenames { key: "7.5" value: "turing" }')
    assert model_file(given, "/repository/m/1", capability) == f"/repository/m/1/{name}"


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/../../b", "a\0b"])
def test_stays_in_the_version_folder(name: str) -> None:
    given = config("")
    given.default_model_filename = name
    with pytest.raises(ModelFileError, match="leaves the folder"):
        model_file(given, "/repository/m/1", None)


def test_adds_up_folders(tmp_path: Path) -> None:
    write(tmp_path, {"a": "123", "b/c": "45", "b/empty": None})
    (tmp_path / "b" / "dangling").symlink_to("nowhere")
    assert files_bytes(str(tmp_path)) == 5
    assert files_bytes(str(tmp_path / "a")) == 3
    assert files_bytes(str(tmp_path / "missing")) == 0
