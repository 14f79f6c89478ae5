"""Which file of a version a GPU opens: `cc_model_filenames` by the compute capability of the device."""

import ctypes
import os
from collections.abc import Callable

from deployments.backends.backend import ModelLoadError
from repository_loader.model_files import ModelFileError, model_file
from repository_loader.package import InstanceSpec, ModelPackage

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def compute_capability(device: int) -> str | None:
    """Return the compute capability of a CUDA device, as `"7.5"`; None where the driver or the device is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device):
        return None
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle):
            return None
    return f"{major.value}.{minor.value}"


def file_for(
    package: ModelPackage, spec: InstanceSpec, capability_of: Callable[[int], str | None] = compute_capability
) -> str:
    """Return the model file of an instance; `capability_of` tells that of a device.

    Raises:
        ModelLoadError: the file is not there, or the name that the configuration gives leaves the version's folder.
    """
    path = package.file_path
    if spec.kind == "GPU" and package.config.cc_model_filenames:
        try:
            path = model_file(package.config, package.version_path, capability_of(spec.device))
        except ModelFileError as error:
            raise ModelLoadError(str(error)) from None
    if not os.path.exists(path):
        shown = os.path.relpath(path, os.path.dirname(package.model_path))
        raise ModelLoadError(f"unable to find '{shown}' for model instance '{spec.name}'")
    return path
