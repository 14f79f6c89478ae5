"""What is known of a real GPU, and that knowing it takes none of its memory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deployments.replica.device_memory import visible_gpus
from deployments.serve_internals import GpuReader, gpu_memory_bytes
from tests.gpus import on_a_gpu
from tests.serving import ROOT

pytestmark = [pytest.mark.gpu, on_a_gpu]

MIB = 1 << 20
LEAST_OF_A_CONTEXT = 100 * MIB
RESERVED = 0.05
"""The share of a GPU's memory at most that the driver keeps, which NVML counts and CUDA does not."""

ASKS = """
from deployments.backends.compute_capability import compute_capability
from deployments.replica.device_memory import visible_gpus
from deployments.serve_internals import GpuReader, gpu_memory_bytes

assert visible_gpus() and compute_capability(0) and GpuReader().read() and gpu_memory_bytes()
"""
HOLDS_A_CONTEXT = """
import torch
torch.ones(1, device="cuda")
"""


def used_bytes() -> int:
    return sum(state["used_bytes"] for state in GpuReader().read().values())


@contextmanager
def process(code: str) -> Iterator[None]:
    """A process that has run some code, and still lives."""
    waits = f"{code}\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        (sys.executable, "-c", waits), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdin is not None and started.stdout is not None
        assert started.stdout.readline() == "done\n"
        yield
        started.stdin.write("\n")
        started.stdin.flush()


def test_nvml_and_cuda_name_the_same_gpus() -> None:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("CUDA is not shown what NVML sees")
    found = GpuReader().read()
    assert sorted(uuid.removeprefix("GPU-").replace("-", "") for uuid in found) == sorted(visible_gpus())
    assert gpu_memory_bytes() == min(state["total_bytes"] for state in found.values())
    assert GpuReader().uuid(["0"]) == next(iter(found))
    for state in found.values():
        assert 0 <= state["used_bytes"] <= state["total_bytes"]
        assert 0 <= state["utilization_ppm"] <= 1_000_000


def test_pytorch_knows_the_gpu_by_the_same_uuid_and_memory() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    properties = torch.cuda.get_device_properties(0)
    uuid = visible_gpus()[0]
    assert str(properties.uuid).removeprefix("GPU-").replace("-", "") == uuid
    (state,) = (each for name, each in GpuReader().read().items() if name.replace("-", "") == f"GPU{uuid}")
    assert 0 <= state["total_bytes"] - properties.total_memory <= RESERVED * state["total_bytes"]


def test_asking_for_gpus_takes_none_of_their_memory() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    before = used_bytes()
    with process(ASKS):
        assert used_bytes() < before + LEAST_OF_A_CONTEXT
    with process(HOLDS_A_CONTEXT):
        assert used_bytes() >= before + LEAST_OF_A_CONTEXT
