"""What tests need to know of the GPUs of the machine, and stand-ins for CUDA's driver and NVML."""

import subprocess
from pathlib import Path

import pytest

from deployments.replica import cuda_driver
from deployments.replica.cuda_driver import NoGpuError, find_gpu
from tests.serving import ROOT


def has_gpu() -> bool:
    try:
        find_gpu()
    except NoGpuError:
        return False
    return True


on_a_gpu = pytest.mark.skipif(not has_gpu(), reason="there is no NVIDIA GPU")


def build_driver(folder: Path) -> Path:
    """Build what stands for the driver where there is no GPU (`tests/cuda.c`), under the name that libraries load."""
    path = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, ROOT / "tests/cuda.c"], check=True)
    return path


def build_nvml(folder: Path) -> Path:
    """Build what stands for NVML (`tests/nvml.c`), under the name that Ray loads."""
    path = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, ROOT / "tests/nvml.c"], check=True)
    return path


def use_driver(path: str, visible: str, patch: pytest.MonkeyPatch) -> None:
    """Have this process and those that it starts load a driver, which shows them some GPUs."""
    patch.setenv("CUDA_VISIBLE_DEVICES", visible)
    patch.setenv("LD_LIBRARY_PATH", str(Path(path).parent))
    patch.setattr(cuda_driver, "_LIBRARY", path)
    forget_driver()


def forget_driver() -> None:
    for found in (cuda_driver.driver, cuda_driver._quick_driver, cuda_driver.context):
        found.cache_clear()
