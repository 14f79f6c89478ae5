"""Which file of a version a GPU opens: `cc_model_filenames` by the compute capability of the device."""

import ctypes
import os
from collections.abc import Callable

from deployments.backends.backend import ModelLoadError
from deployments.replica.cuda_driver import DeviceMemoryError, call, device
from repository_loader.model_files import ModelFileError, model_file
from repository_loader.package import InstanceSpec, ModelPackage

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def compute_capability(device_id: int) -> str | None:
    """Return the compute capability of a CUDA device, as `"7.5"`; None where the driver or the device is missing."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        handle = device(device_id)
        for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
            call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
    except DeviceMemoryError:
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
