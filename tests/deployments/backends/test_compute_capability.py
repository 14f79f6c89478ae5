from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.backends.compute_capability import compute_capability, file_for
from repository_loader.package import InstanceSpec, ModelPackage
from tests.gpus import build_driver, forget_driver, use_driver

CPU, GPU = InstanceSpec("m_0", "CPU", 0), InstanceSpec("m_0", "GPU", 1)


@pytest.fixture
def package(tmp_path: Path) -> ModelPackage:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    for name in ("model.plan", "hopper.plan"):
        (version / name).touch()
    files = {"9.0": "hopper.plan", "8.0": "gone.plan"}
    config = ModelConfig(name="m", default_model_filename="model.plan", cc_model_filenames=files)
    return ModelPackage("m", 1, config, str(version.parent), str(version), str(version / "model.plan"))


@pytest.mark.parametrize(
    ("spec", "capability", "name"),
    [
        (GPU, "9.0", "hopper.plan"),
        (GPU, "7.5", "model.plan"),
        (GPU, None, "model.plan"),
        (CPU, "9.0", "model.plan"),
    ],
)
def test_a_gpu_opens_the_file_of_its_compute_capability(
    package: ModelPackage, spec: InstanceSpec, capability: str | None, name: str
) -> None:
    assert Path(file_for(package, spec, lambda device: capability)).name == name


def test_a_file_that_is_not_there_is_named_inside_the_repository(package: ModelPackage) -> None:
    with pytest.raises(ModelLoadError, match=r"^unable to find 'm/1/gone.plan' for model instance 'm_0'$"):
        file_for(package, GPU, lambda device: "8.0")


def test_the_driver_is_asked_for_the_capability_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_driver(str(build_driver(tmp_path)), "10", monkeypatch)
    try:
        assert [compute_capability(device_id) for device_id in (0, 1, 2)] == ["9.1", "9.0", None]
    finally:
        forget_driver()
    use_driver(str(tmp_path / "libno-such-driver.so"), "0", monkeypatch)
    try:
        assert compute_capability(0) is None
    finally:
        forget_driver()
