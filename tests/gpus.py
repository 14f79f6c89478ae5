"""What tests need to know of the GPUs of the machine."""

import pytest

from deployments.replica.device_memory import NoGpuError, find_gpu


def has_gpu() -> bool:
    try:
        find_gpu()
    except NoGpuError:
        return False
    return True


on_a_gpu = pytest.mark.skipif(not has_gpu(), reason="there is no NVIDIA GPU")
