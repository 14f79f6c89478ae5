import ctypes
import time
from pathlib import Path

import pytest

from deployments.backends.gpu_fault import GpuFault, internal_error, is_of_lost_gpu
from tests.gpus import build_driver, forget_driver, use_driver

ONNX = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node. Status Message: "
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=a ; expr=cudaStreamSynchronize(s); "
)
SCRIPT = (
    "The following operation failed in the TorchScript interpreter.\nRuntimeError: CUDA error: misaligned address\n"
)


@pytest.mark.parametrize(
    "text",
    [
        ONNX,
        SCRIPT,
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: device-side assert triggered",
        "cudaErrorLaunchFailure: unspecified launch failure",
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "CUDA driver error: device-side assert triggered",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "CUDA error: the launch timed out and was terminated",
    ],
)
def test_errors_that_cuda_never_recovers_from_are_known(text: str) -> None:
    assert isinstance(internal_error("told", text), GpuFault)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "CUDA failure 2: out of memory ; GPU=0",
        "CUDA error: invalid argument",
        "cannot read 'an illegal memory access'",
    ],
)
def test_others_fail_their_batch_only(text: str) -> None:
    error = internal_error("told", text)
    assert not isinstance(error, GpuFault)
    assert (error.message, error.http_status) == ("told", 500)


def test_what_a_client_has_sent_ends_no_process() -> None:
    text = "unknown city 'CUDA error: device-side assert triggered'"
    assert not isinstance(internal_error("told", text, own_words=True), GpuFault)
    assert isinstance(internal_error("told", text[14:], own_words=True), GpuFault)


def test_what_a_client_has_sent_shows_no_gpu_to_a_process_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(build_driver(tmp_path))
    use_driver(path, "", monkeypatch)
    try:
        assert not is_of_lost_gpu("unknown city 'CUDA error: device-side assert triggered'")
        count = ctypes.c_int()
        ctypes.CDLL(path).cuDeviceGetCount(ctypes.byref(count))
        assert count.value == -1, "as before cuInit, after which a framework would find the GPU"
    finally:
        forget_driver()


@pytest.mark.parametrize("word", ["cudaError", "CUDA_ERROR_", "CUDA failure 7"])
def test_a_long_text_of_a_client_is_read_quickly(word: str) -> None:
    start_s = time.thread_time()
    assert not is_of_lost_gpu(word * (1_000_000 // len(word)))
    assert time.thread_time() - start_s < 2, "not with the square of its length"


def test_cuda_says_that_a_gpu_is_lost_where_another_library_has_failed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(build_driver(tmp_path))
    use_driver(path, "0", monkeypatch)
    text = "[ONNXRuntimeError] : 1 : FAIL : CUBLAS failure 14: the library cuBLAS failed ; GPU=0"
    driver = ctypes.CDLL(path)
    try:
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
        assert not isinstance(internal_error("told", text), GpuFault)
        driver.loseGpus()
        assert isinstance(internal_error("told", text), GpuFault)
    finally:
        forget_driver()
