"""Errors after which a process cannot use its GPU any more: CUDA answers all its later calls with the same.

Source: "CUDA Runtime API, error types": those that leave the process in an inconsistent state.
"""

import re
from typing import Final

from deployments.replica.device_memory import has_lost_gpu
from protocol.errors import Internal

_WORDS: Final = (
    "illegal memory access|misaligned address|device-side assert|unspecified launch failure|illegal instruction"
    "|hardware stack error|invalid program counter|operation not supported on global/shared address space"
    "|uncorrectable ECC error|uncorrectable NVLink error|launch timed out"
)
# As PyTorch, ONNX Runtime, CuPy and kernels of OpenAI's Triton begin them. Bounded, as the text may be a client's.
_BEGINNINGS: Final = (
    r"CUDA error: |CUDA driver error: |CUDA failure \d{1,9}: |cudaError\w{1,64}: |CUDA_ERROR_\w{1,64}: "
    r"|Triton Error \[CUDA\]: "
)
_LOST: Final = re.compile(rf"(?:{_BEGINNINGS})[^\n]{{0,40}}(?:{_WORDS})")


class GpuFault(Internal):
    """The GPU failed the batch, and will fail all that come after it in this process."""


def internal_error(message: str, text: str, *, own_words: bool = False) -> Internal:
    """Return what the client is told for an exception of a framework on a GPU, and whether that is lost.

    Its `text` tells that, or CUDA: a library on top of it (cuBLAS, cuDNN) may have failed first, in words of its own.
    `own_words`: the exception may come from a model's own code, and hold what a client has sent behind its beginning;
    nothing but that counts.
    """
    lost = _LOST.match(text) is not None if own_words else _LOST.search(text) is not None or has_lost_gpu()
    return (GpuFault if lost else Internal)(message)


def is_of_lost_gpu(text: str) -> bool:
    """Whether a text of a model's own, and maybe of a client's, speaks of such an error, and CUDA answers with one."""
    return _LOST.search(text) is not None and has_lost_gpu()
