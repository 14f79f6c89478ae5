"""Which models have a Python-based backend, and what their configuration says then."""

from pathlib import Path

import pytest

from deployments.backends.auto_complete import complete
from repository_loader.python_based_backend import OWN_BACKENDS, weights_bytes
from repository_loader.repository import load_repositories
from repository_loader.serialisation import package_from_dict, package_to_dict
from repository_loader.snapshot import LoaderOptions, RepositoryModel
from tests.repository_loader.repositories import PYTHON_MODEL, TENSORS, write


def load_one(root: Path, config: str, tensors: str = TENSORS, **files: str) -> RepositoryModel:
    """Read a model `m` of version 1, with `backends/` beside its repository."""
    write(root, {"models/m/config.pbtxt": f"{config} {tensors}", "models/m/1": None} | files)
    options = LoaderOptions(backend_directory=str(root / "backends"))
    (model,) = load_repositories([str(root / "models")], options, None).models.values()
    return model


def test_pytorch_has_one_that_comes_with_eagleray_where_the_directory_has_none(tmp_path: Path) -> None:
    config = 'backend: "pytorch" runtime: "model.py"'
    (package,) = load_one(tmp_path, config, **{"models/m/1/model.py": "", "models/m/1/model.pt": ""}).packages
    assert package.file_path == f"{OWN_BACKENDS}/pytorch/model.py" and Path(package.file_path).is_file()
    assert (package.config.default_model_filename, package.config.platform) == ("", "pytorch_libtorch")
    (package,) = load_one(tmp_path, config, **{"backends/pytorch/model.py": PYTHON_MODEL}).packages
    assert package.file_path == str(tmp_path / "backends/pytorch/model.py")


def test_its_weights_are_those_that_the_version_has(tmp_path: Path) -> None:
    files = {"models/m/1/model.py": "code", "models/m/1/model.pt": "w" * 10_000}
    (package,) = load_one(tmp_path, 'backend: "pytorch" runtime: "model.py"', **files).packages
    assert weights_bytes(package) == 10_004


def test_it_is_found_where_eagleray_is_installed_elsewhere(tmp_path: Path) -> None:
    values = package_to_dict(load_one(tmp_path, 'backend: "pytorch" runtime: "model.py"').packages[0])
    own = values["file_path"]
    inner = own.removeprefix(own.partition("/deployments/")[0])
    assert package_from_dict(values | {"file_path": f"/elsewhere{inner}"}).file_path == own
    for path in ("/elsewhere/pytorch/model.py", "/elsewhere/deployments/backends/python_based/mine/model.py", ""):
        assert package_from_dict(values | {"file_path": path}).file_path == path
    write(tmp_path, {inner.removeprefix("/"): PYTHON_MODEL})
    assert package_from_dict(values | {"file_path": f"{tmp_path}{inner}"}).file_path == f"{tmp_path}{inner}"


def test_the_backends_code_is_the_models(tmp_path: Path) -> None:
    model = load_one(tmp_path, 'backend: "mine"', **{"backends/mine/model.py": PYTHON_MODEL})
    assert model.failure is None
    assert [finding.message for finding in model.findings] == []
    (package,) = model.packages
    assert package.file_path == str(tmp_path / "backends/mine/model.py")
    assert (package.model_path, package.version_path) == (str(tmp_path / "models/m"), str(tmp_path / "models/m/1"))
    assert (package.config.backend, package.config.runtime) == ("mine", "model.py")


def test_a_model_may_bring_its_backend(tmp_path: Path) -> None:
    model = load_one(tmp_path, 'backend: "mine"', **{"models/m/model.py": PYTHON_MODEL})
    assert model.packages[0].file_path == str(tmp_path / "models/m/model.py")


@pytest.mark.parametrize("runtime", ["model.py", ""])
def test_a_backend_of_eaglerays_own_comes_first_unless_runtime_says_otherwise(tmp_path: Path, runtime: str) -> None:
    config = f'backend: "identity" runtime: "{runtime}"'
    tensors = TENSORS.replace('"X"', '"INPUT0"').replace('"Y"', '"OUTPUT0"')
    model = load_one(tmp_path, config, tensors, **{"backends/identity/model.py": PYTHON_MODEL})
    assert model.packages[0].config.runtime == runtime


def test_one_of_python_in_place_of_eaglerays_own_completes_its_models(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        return config
"""
    config = 'backend: "onnxruntime" runtime: "model.py"'
    write(tmp_path, {"models/m/config.pbtxt": config, "models/m/1": None, "backends/onnxruntime/model.py": code})
    options = LoaderOptions(backend_directory=str(tmp_path / "backends"))
    model = load_repositories([str(tmp_path / "models")], options, complete).models["m"]
    assert model.failure is None
    assert [each.name for each in model.packages[0].config.input] == ["X"]


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ("", "{root}/backends/mine/pb_exec_env_model.py.tar.gz"),
        ('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/own" } }', "/own"),
    ],
)
def test_the_environment_beside_the_backend_is_the_models_unless_it_names_one(
    tmp_path: Path, config: str, chosen: str
) -> None:
    files = {"backends/mine/model.py": PYTHON_MODEL, "backends/mine/pb_exec_env_model.py.tar.gz": "archive"}
    (package,) = load_one(tmp_path, f'backend: "mine" {config}', **files).packages
    assert package.config.parameters["EXECUTION_ENV_PATH"].string_value == chosen.format(root=tmp_path)


def test_a_changed_backend_makes_another_revision(tmp_path: Path) -> None:
    def revision(code: str) -> str:
        return load_one(tmp_path, 'backend: "mine"', **{"backends/mine/model.py": code}).packages[0].revision

    first = revision(PYTHON_MODEL)
    assert revision(f"{PYTHON_MODEL}#") != first


def test_a_backends_name_never_leaves_the_directory(tmp_path: Path) -> None:
    files = {"backends/mine/model.py": PYTHON_MODEL, "outside/model.py": PYTHON_MODEL}
    model = load_one(tmp_path, 'backend: "../outside"', **files)
    assert model.failure is not None
    assert model.failure.startswith("unable to find backend library for backend '../outside'")
