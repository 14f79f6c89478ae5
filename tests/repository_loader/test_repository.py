import os
import sys
import threading
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.repository import RepositoryError, find_models, load_repositories
from repository_loader.snapshot import LoaderOptions, Override, RepositoryModel
from tests.repository_loader.repositories import BATCHING_ONNX, FIXED_ONNX, TENSORS, python_model, write

AUTO = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n        return c\n"


def load_one(root: Path, options: LoaderOptions | None = None) -> RepositoryModel:
    (model,) = load_repositories([str(root)], options or LoaderOptions(), None).models.values()
    return model


def test_a_folder_with_an_onnx_file_is_a_model(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.onnx": BATCHING_ONNX, "notes.txt": "no model"})
    model = load_one(tmp_path)
    assert model.failure is None
    (package,) = model.packages
    assert package.config == text_format.Parse(
        """
        name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" default_model_filename: "model.onnx"
        version_policy { latest { num_versions: 1 } } max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }
        dynamic_batching { preferred_batch_size: 4 }
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
        instance_group { name: "m" kind: KIND_CPU count: 2 }
        """,
        ModelConfig(),
    )
    assert package.file_path == str(tmp_path / "m/1/model.onnx")
    assert (package.model_path, package.version_path) == (str(tmp_path / "m"), str(tmp_path / "m/1"))


FAILURES: dict[str, tuple[dict[str, str | bytes | None], LoaderOptions, str]] = {
    "no versions": (
        {"m/config.pbtxt": 'backend: "python"'},
        LoaderOptions(),
        "at least one version must be available under the version policy of model 'm'",
    ),
    "other name": (
        python_model("m", f'name: "other" {TENSORS}'),
        LoaderOptions(),
        "unexpected directory name 'm' for model 'other', directory name must equal model name",
    ),
    "missing file": (
        {"m/config.pbtxt": f'backend: "python" {TENSORS}', "m/1": None},
        LoaderOptions(),
        "unable to find '{root}/m/1/model.py' for model instance 'm_0'",
    ),
    "no configuration when it must be complete": (
        {"m/1/model.onnx": BATCHING_ONNX},
        LoaderOptions(disable_auto_complete_config=True),
        "failed to open text file for read {root}/m/config.pbtxt: No such file or directory",
    ),
    "incomplete configuration when it must be complete": (
        {"m/1/model.onnx": BATCHING_ONNX, "m/config.pbtxt": 'backend: "onnxruntime"'},
        LoaderOptions(disable_auto_complete_config=True),
        "model configuration must specify 'input' and 'output' for m",
    ),
    "broken text": (
        {"m/config.pbtxt": "\nfoo: 1"},
        LoaderOptions(),
        'failed to read text proto from {root}/m/config.pbtxt:2:1: Message type "inference.ModelConfig" has no field '
        'named "foo".',
    ),
    "broken file": (
        {"m/1/model.onnx": BATCHING_ONNX[:-9]},
        LoaderOptions(),
        "version 1: 'model.onnx' is not a whole ONNX model",
    ),
    "broken file with a complete configuration": (
        {"m/1/model.onnx": b"?", "m/config.pbtxt": f'backend: "onnxruntime" {TENSORS}'},
        LoaderOptions(disable_auto_complete_config=True),
        "version 1: 'model.onnx' is not a whole ONNX model",
    ),
    "broken file of one of two versions": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/2/model.onnx": BATCHING_ONNX[:-9],
            "m/config.pbtxt": "version_policy { all { } }",
        },
        LoaderOptions(),
        "version 2: 'model.onnx' is not a whole ONNX model",
    ),
    "fixed batch": (
        {"m/1/model.onnx": FIXED_ONNX, "m/config.pbtxt": "max_batch_size: 8"},
        LoaderOptions(),
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified",
    ),
    "one of two versions": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/2/model.onnx": FIXED_ONNX,
            "m/config.pbtxt": "version_policy { all { } } max_batch_size: 8",
        },
        LoaderOptions(),
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified",
    ),
    "labels": (
        python_model(
            "m",
            'input { name: "X" data_type: TYPE_FP32 dims: 4 } '
            'output { name: "Y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }',
        ),
        LoaderOptions(),
        "unable to find 'labels.txt' in the folder of model 'm'",
    ),
    "Python environment": (
        python_model(
            "m",
            f'{TENSORS} parameters {{ key: "EXECUTION_ENV_PATH" '
            'value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }',
        ),
        LoaderOptions(),
        "the execution environment '$$TRITON_MODEL_DIRECTORY/env.tar.gz' does not exist",
    ),
    "control character in the name": (
        {"m\n/1/model.onnx": BATCHING_ONNX},
        LoaderOptions(),
        "invalid model name 'm\\n'",
    ),
}


@pytest.mark.parametrize(("files", "options", "reason"), FAILURES.values(), ids=FAILURES)
def test_fails_one_model_and_no_other(
    tmp_path: Path, files: dict[str, str | bytes | None], options: LoaderOptions, reason: str
) -> None:
    write(tmp_path, {**files, **python_model("good")})
    models = load_repositories([str(tmp_path)], options, None).models
    assert models["good"].failure is None
    (failed,) = (model for name, model in models.items() if name != "good")
    assert failed.failure is not None
    assert failed.failure.startswith(reason.replace("{root}", str(tmp_path)))
    assert failed.packages == ()
    assert any(finding.severity == "error" for finding in failed.findings)


def test_a_fault_has_its_place(tmp_path: Path) -> None:
    write(tmp_path, python_model("m", f"\n{TENSORS}\nmax_batch_size: -3"))
    assert [str(finding) for finding in load_one(tmp_path).findings] == [
        f"{tmp_path}/m/config.pbtxt:3:1: error: 'max_batch_size' must be non-negative value for m"
    ]


def test_reports_every_fault(tmp_path: Path) -> None:
    write(tmp_path, python_model("m", "max_batch_size: -3 input { } output { }"))
    assert len(load_one(tmp_path).findings) == 3


def test_each_version_has_its_own_configuration(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "m/1/model.onnx": FIXED_ONNX,
            "m/3/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": "version_policy { all { } }",
        },
    )
    model = load_one(tmp_path)
    assert [(package.version, package.config.max_batch_size) for package in model.packages] == [(1, 0), (3, 4)]
    assert model.config == model.packages[-1].config


def test_uses_the_only_file_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/preprocessor.py": "", "m/config.pbtxt": f'backend: "python" {TENSORS}'})
    model = load_one(tmp_path)
    assert model.packages[0].file_path.endswith("m/1/preprocessor.py")
    assert model.packages[0].config.default_model_filename == "preprocessor.py"
    assert ["preprocessor.py" in finding.message for finding in model.findings] == [True]


def test_takes_the_configuration_of_that_name(tmp_path: Path) -> None:
    files = {**python_model("m"), "m/configs/big.pbtxt": f'backend: "python" max_batch_size: 64 {TENSORS}'}
    write(tmp_path, {**files, **python_model("other")})
    models = load_repositories([str(tmp_path)], LoaderOptions(model_config_name="big"), None).models
    assert [models[name].packages[0].config.max_batch_size for name in ("m", "other")] == [64, 0]


def test_the_same_name_in_two_repositories_is_no_model(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {**python_model("m"), **python_model("first")})
    second = write(tmp_path / "b", {**python_model("m"), **python_model("second")})
    models = load_repositories([first, second], LoaderOptions(), None).models
    assert {name: model.failure for name, model in models.items()} == {
        "first": None,
        "m": "model appears in two or more repositories",
        "second": None,
    }


def test_the_same_repository_twice_is_one(tmp_path: Path) -> None:
    root = write(tmp_path, python_model("m"))
    assert load_repositories([root, root + "/"], LoaderOptions(), None).models["m"].failure is None


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_repository_must_be_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryError, match=name):
        load_repositories([str(tmp_path / name)], LoaderOptions(), None)


def test_ignores_hidden_folders_without_a_configuration(tmp_path: Path) -> None:
    write(tmp_path, {".git/objects/a": "", **python_model(".hidden")})
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    assert list(snapshot.models) == [".hidden"]
    assert [finding.path for finding in snapshot.findings] == [str(tmp_path / ".git")]


@pytest.mark.parametrize("name", ["lost+found", "__pycache__", "__MACOSX"])
def test_ignores_folders_that_were_left_behind(tmp_path: Path, name: str) -> None:
    write(tmp_path, {f"{name}/file": "", **python_model("model")})
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    assert list(snapshot.models) == ["model"]
    assert [finding.path for finding in snapshot.findings] == [str(tmp_path / name)]


def test_says_that_a_folder_is_a_model_and_no_repository(tmp_path: Path) -> None:
    write(tmp_path, python_model("model"))
    (finding,) = load_repositories([str(tmp_path / "model")], LoaderOptions(), None).findings
    assert finding.path == str(tmp_path / "model/config.pbtxt")
    assert finding.message == "this folder is a model; the repository is the one above it"


def test_a_repository_that_is_read_as_a_model_of_the_folder_above_it_is_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text('backend: "identity"')
    findings = load_repositories([str(tmp_path)], LoaderOptions(), None).models["models"].findings
    told = [finding.message for finding in findings if finding.path == str(tmp_path / "models")]
    assert "'a' in this folder is a model, so the folder may be a repository; it is read as a model" in told


@pytest.mark.parametrize("name", ["Config.pbtxt", "config.pbtext", "config.pbtxt.txt", "config.prototxt", "config.txt"])
def test_says_that_a_configuration_is_misnamed(tmp_path: Path, name: str) -> None:
    write(tmp_path, {**python_model("m"), "m/config.json": "{}"})
    (tmp_path / "m/config.pbtxt").rename(tmp_path / "m" / name)
    (finding,) = [
        each
        for each in load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].findings
        if name in each.path
    ]
    assert (finding.severity, finding.message) == ("warning", "not read: a configuration is called config.pbtxt")


def test_says_that_a_configuration_stands_in_a_version_folder(tmp_path: Path) -> None:
    write(tmp_path, {**python_model("m"), "m/2": None})
    (tmp_path / "m/config.pbtxt").rename(tmp_path / "m/1/config.pbtxt")
    findings = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].findings
    (finding,) = [each for each in findings if each.path.endswith("m/1/config.pbtxt")]
    assert finding.message == "not read: a configuration stands beside its model's version folders, not in one"


def test_ignores_folders_whose_names_no_client_could_be_told(tmp_path: Path) -> None:
    write(tmp_path, {**python_model("m"), **python_model("bad\udcff")})
    assert list(find_models([str(tmp_path)], LoaderOptions())) == ["m"]
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    assert list(snapshot.models) == ["m"]
    assert [finding.message for finding in snapshot.findings] == [
        "folder 'bad\\udcff' is no model, as its name is not UTF-8 text; ignored"
    ]


def test_an_encoding_of_names_that_hides_models_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, python_model("bad\udcff"))
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    (finding,) = load_repositories([str(tmp_path)], LoaderOptions(), None).findings
    assert "not UTF-8 text as Python reads it here, which is ascii (PYTHONUTF8=1 changes that); " in finding.message


def test_a_folder_that_cannot_be_looked_at_is_its_own_models_fault_alone(tmp_path: Path) -> None:
    write(tmp_path, python_model("m"))
    for folder in (tmp_path, tmp_path / "m"):
        (folder / "loop").symlink_to("loop")
    models = load_repositories([str(tmp_path)], LoaderOptions(), None).models
    assert {name: model.failure for name, model in models.items()} == {
        "loop": "the folder of model 'loop' cannot be read: Too many levels of symbolic links",
        "m": None,
    }


def test_what_of_a_model_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, {**python_model("config"), **python_model("version")})
    for path in ("config/config.pbtxt", "version/2"):
        (tmp_path / path).unlink(missing_ok=True)
        (tmp_path / path).symlink_to(os.path.basename(path))
    models = load_repositories([str(tmp_path)], LoaderOptions(), None).models
    assert {name: model.failure for name, model in models.items()} == {
        "config": "'config.pbtxt' of model 'config' cannot be read: Too many levels of symbolic links",
        "version": "'2' of model 'version' cannot be read: Too many levels of symbolic links",
    }


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    write(tmp_path, python_model("m"))
    (tmp_path / "gone").symlink_to("/nowhere")
    (tmp_path / "m/2").symlink_to("/nowhere")
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    (finding,) = snapshot.findings
    assert (finding.severity, finding.path) == ("warning", str(tmp_path))
    assert finding.message == "'gone' is a link to nothing, and no model; ignored"
    told = [each.message for each in snapshot.models["m"].findings]
    assert "ignore '2' which is a link to nothing" in told


def test_a_model_file_and_a_configuration_that_are_links_to_nothing_are_called_so(tmp_path: Path) -> None:
    write(
        tmp_path, {"m/1": None, "m/config.pbtxt": f'backend: "onnxruntime" {TENSORS}', "n/1/model.onnx": BATCHING_ONNX}
    )
    (tmp_path / "m/1/model.onnx").symlink_to(tmp_path / "nowhere")
    (tmp_path / "n/config.pbtxt").symlink_to(tmp_path / "nowhere")
    models = load_repositories([str(tmp_path)], LoaderOptions(), None).models
    reason = f"unable to find '{tmp_path}/m/1/model.onnx' for model instance 'm_0': it is a link to nothing"
    assert [finding.message for finding in models["m"].findings] == [reason]
    first, completed = (finding.message for finding in models["n"].findings)
    assert first == "ignore 'config.pbtxt' which is a link to nothing"
    assert completed.startswith("max_batch_size of 'n' is completed")


def test_a_model_without_a_version_folder_is_told_what_one_is(tmp_path: Path) -> None:
    write(tmp_path, {"m/model.onnx": FIXED_ONNX, "m/config.pbtxt": 'backend: "onnxruntime"'})
    model = load_one(tmp_path)
    assert model.failure == "at least one version must be available under the version policy of model 'm'"
    assert "there is no version folder here: a number, as '1', with the model's files in it" in [
        each.message for each in model.findings
    ]


def test_loads_only_what_is_asked_for_and_what_it_needs(tmp_path: Path) -> None:
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    step = f'step {{ model_name: "a" model_version: -1 {maps} }}'
    ensemble = f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}'
    write(tmp_path, {**python_model("a"), **python_model("b"), "e/config.pbtxt": ensemble, "e/1": None})
    root = str(tmp_path)
    assert list(load_repositories([root], LoaderOptions(), None, only=["e", "missing"]).models) == ["a", "e"]
    assert list(load_repositories([root], LoaderOptions(), None, only=["b"]).models) == ["b"]
    assert list(load_repositories([root], LoaderOptions(), None, only=[]).models) == []


def test_an_override_replaces_the_file(tmp_path: Path) -> None:
    root = write(tmp_path, {**python_model("m"), "m/config.pbtxt": "broken"})
    override = text_format.Parse(f'backend: "python" max_batch_size: 3 {TENSORS}', ModelConfig())
    model = load_repositories([root], LoaderOptions(), None, overrides={"m": Override(override)}).models["m"]
    assert model.failure is None
    assert model.packages[0].config.max_batch_size == 3
    assert override.name == ""


def test_asks_python_models_at_the_same_time(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        write(tmp_path, {f"{name}/1/model.py": AUTO})
    together = threading.Barrier(4, timeout=20)

    def complete(config: ModelConfig, model_path: str, version_path: str, file_path: str) -> ModelConfig:
        together.wait()
        if model_path.endswith("c"):
            raise RuntimeError("cannot import torch")
        return text_format.Parse(f'name: "{config.name}" {TENSORS}', ModelConfig())

    models = load_repositories([str(tmp_path)], LoaderOptions(), complete).models
    assert {name: model.failure for name, model in models.items()} == {
        "a": None,
        "b": None,
        "c": "cannot import torch",
        "d": None,
    }


def test_python_models_are_not_asked_when_completion_is_off(tmp_path: Path) -> None:
    def complete(*_: object) -> ModelConfig:
        raise AssertionError

    root = write(tmp_path, {"m/1/model.py": AUTO, "m/config.pbtxt": f'backend: "python" {TENSORS}'})
    options = LoaderOptions(disable_auto_complete_config=True)
    assert load_repositories([root], options, complete).models["m"].failure is None


def test_backend_settings_reach_the_package_and_set_the_default_batch_size(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.onnx": BATCHING_ONNX})
    settings = {
        "": {"a": "1", "b": "1"},
        "onnxruntime": {"b": "2", "default-max-batch-size": "16"},
        "python": {"c": "3"},
    }
    (package,) = load_one(tmp_path, LoaderOptions(backend_settings=settings)).packages
    assert package.backend_settings == {"a": "1", "b": "2", "default-max-batch-size": "16"}
    assert package.config.max_batch_size == 16


def test_a_setting_of_a_backend_that_its_models_cannot_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.onnx": BATCHING_ONNX})
    model = load_one(tmp_path, LoaderOptions(backend_settings={"onnxruntime": {"intra_op_thread_count": "abc"}}))
    assert model.failure is not None and "'abc'" in model.failure


@pytest.mark.parametrize(("fall_back", "fails"), [(False, True), (True, False)])
def test_a_gpu_model_without_a_gpu(tmp_path: Path, fall_back: bool, fails: bool) -> None:
    write(tmp_path, python_model("m", f"{TENSORS} instance_group {{ kind: KIND_GPU }}"))
    model = load_one(tmp_path, LoaderOptions(kind_gpu_fallback_to_cpu=fall_back))
    assert (model.failure is not None) is fails
    assert model.findings[0].message.startswith(
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"
    )


def test_what_the_graph_says_of_an_ensemble_has_its_place_whatever_its_comments_are_in(tmp_path: Path) -> None:
    step = 'step { model_name: "gone" model_version: 1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }'
    text = f'# Größe\nplatform: "ensemble" {TENSORS}\nensemble_scheduling {{\n  {step}\n}}'
    write(tmp_path, {"e/config.pbtxt": text.encode("latin-1"), "e/1": None})
    (finding,) = load_one(tmp_path).findings
    assert finding.message == "ensemble e contains models that are not available or ambiguous: gone"
    assert (finding.line, finding.column) == (4, 10)
