"""What is told of errors of a GPU: without one of what PyTorch says then, with one of those that it makes."""

import pytest
from python_models import floats
from torch_models import fp32, load_module, run

from protocol.errors import Internal

torch = pytest.importorskip("torch")

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
