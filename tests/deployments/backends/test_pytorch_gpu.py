"""PyTorch models on GPUs, where they end or fail: what needs no GPU for it comes first."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from python_models import floats
from torch_models import fp32, load_module, run

from deployments.backends.backend import ModelLoadError
from deployments.backends.gpu_fault import GpuFault
from protocol.errors import Internal
from tests.serving import ROOT

torch = pytest.importorskip("torch")
on_torchs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")

ADVICE = """
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
IN_TORCHSCRIPT = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "model.py", line 3, in forward
RuntimeError: """
ASSERTED = "CUDA error: device-side assert triggered"


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ASSERTED + ADVICE, ASSERTED),
        (IN_TORCHSCRIPT + ASSERTED + ADVICE, f"RuntimeError: {ASSERTED}"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
    ids=["from a kernel", "in TorchScript", "no memory"],
)
def test_a_client_is_told_what_failed_and_not_how_kernels_are_debugged(tmp_path, said, told):
    [instance] = load_module(tmp_path, Twice(), fp32("x"), fp32("y"))

    def fail(*_):
        raise RuntimeError(said)

    instance._module.call = fail
    with pytest.raises(Internal) as raised:
        run(instance, {"x": floats(1)})
    assert raised.value.message == f"PyTorch execute failure: {told}"


@pytest.mark.parametrize("lost", [False, True])
def test_memory_on_a_gpu_goes_back_when_the_model_ends(tmp_path, monkeypatch, lost):
    [instance] = load_module(tmp_path, Twice(), fp32("x"), fp32("y"))
    held = []

    def empty_cache():
        held.append(instance._module)
        if lost:
            raise RuntimeError(ASSERTED)

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    instance.on_gpu = True
    instance.close()
    assert held == [None]


LIMIT = 0.02
"""The share of the GPU that PyTorch may have in this process: what is more than that finds no memory."""


class Repeat(torch.nn.Module):
    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return x.expand(1, int(times.item())).contiguous()[:, :1] + 1


@pytest.fixture
def little_memory():
    torch.cuda.set_per_process_memory_fraction(LIMIT, 0)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


@pytest.mark.gpu
@on_torchs_gpu
def test_a_request_without_memory_on_the_gpu_fails_alone(tmp_path, little_memory):
    [instance] = load_module(tmp_path, Repeat(), fp32("x", "times"), fp32("y"), kind="GPU")
    for _ in range(3):
        with pytest.raises(Internal, match="out of memory") as raised:
            run(instance, {"x": floats(1), "times": np.float32([[1 << 30]])})
        assert not isinstance(raised.value, GpuFault)
        assert run(instance, {"x": floats(1), "times": floats(4)}) == [{"y": [[2]]}]
    instance.close()


@pytest.mark.gpu
@on_torchs_gpu
def test_memory_of_a_gpu_is_free_when_the_model_has_ended(tmp_path):
    torch.cuda.init()
    [instance] = load_module(tmp_path, Repeat(), fp32("x", "times"), fp32("y"), kind="GPU")
    before = torch.cuda.memory_reserved(0)
    assert run(instance, {"x": floats(1), "times": np.float32([[64 << 20]])}) == [{"y": [[2]]}]
    assert torch.cuda.memory_reserved(0) >= before + (256 << 20)
    instance.close()
    assert torch.cuda.memory_reserved(0) <= before


POISONS = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import numpy as np
from test_pytorch_gpu import Pick
from torch_models import fp32, load_module, run
from deployments.replica.device_memory import has_lost_gpu

one, other = load_module(Path(sys.argv[1]), Pick(), fp32("x"), fp32("y"), kind="GPU", count=2)
assert run(one, {{"x": np.float32([[1]])}}) == [{{"y": [[20]]}}]
assert not has_lost_gpu()
for instance, number in ((one, 1000), (other, 1), (one, 1)):
    try:
        run(instance, {{"x": np.float32([[number]])}})
    except Exception as error:
        print(type(error).__name__, error, flush=True)
assert has_lost_gpu()
one.close(), other.close()
os._exit(0)
"""


class Pick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([10.0, 20.0, 30.0], device=x.device)
        return table[x.long()]


@pytest.mark.gpu
@on_torchs_gpu
def test_a_kernel_whose_assertion_fails_is_a_gpu_that_is_lost(tmp_path):
    command = (sys.executable, "-c", POISONS, str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("GpuFault PyTorch execute failure: ")]
    assert len(told) == 3 and ASSERTED in told[0], done.stdout


@pytest.mark.gpu
@on_torchs_gpu
def test_a_package_for_cuda_answers_on_the_gpu(tmp_path):
    from torch._inductor import aoti_compile_and_package

    (tmp_path / "net" / "1").mkdir(parents=True)
    exported = torch.export.export(Twice().cuda(), (torch.ones(2, 1, device="cuda"),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            aoti_compile_and_package(exported, package_path=str(tmp_path / "net" / "1" / "model.pt2"))
        except Exception as error:
            pytest.skip(f"AOTInductor cannot compile here: {error}")
        with pytest.raises(ModelLoadError, match=r"is compiled for cuda: every instance has to be KIND_GPU"):
            load_module(tmp_path, None, fp32("x"), fp32("y"), file="model.pt2")
        [instance] = load_module(tmp_path, None, fp32("x"), fp32("y"), file="model.pt2", kind="GPU")
        assert run(instance, {"x": np.float32([[1], [2]])}) == [{"y": [[2], [4]]}]
