"""Python models that catch the errors of their GPU; `tests/cuda.c` stands for CUDA's driver where there is no GPU."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.replica.model_host import ModelFaultError
from protocol.errors import ServingError
from tests.deployments.replica.hosted_models import DECOUPLED, Hosted, Models, unfrozen
from tests.gpus import build_driver, forget_driver, on_a_gpu, use_driver

__all__ = ["unfrozen"]

CATCHES = """
import ctypes, os

class TritonPythonModel:
    def initialize(self, args):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        if {uses_gpu}:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
        if {loses_gpu}:
            driver.loseGpus()

    def execute(self, requests):
        if not x_of(requests[0]).as_numpy()[0]:
            return [answer(np.array([os.getpid()], np.int32))]
        text = "cannot answer: CUDA error: misaligned address"
        if {raises}:
            raise ValueError(text)
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text))]
"""
CATCHES_A_REAL_ONE = """
import os
import torch

class TritonPythonModel:
    def execute(self, requests):
        index = int(x_of(requests[0]).as_numpy()[0])
        if not index:
            return [answer(np.array([os.getpid()], np.int32))]
        try:
            table = torch.arange(3, dtype=torch.int32, device="cuda")
            return [answer(table[torch.tensor([index], device="cuda")].cpu().numpy())]
        except Exception as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"cannot answer: {error}"))]
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = str(build_driver(tmp_path))
    use_driver(path, "0", monkeypatch)
    yield path
    forget_driver()


async def told(call: Hosted, *arrays: int) -> str:
    try:
        return str(await call("catches", *arrays))
    except ServingError as error:
        return error.message


@pytest.mark.parametrize(("uses_gpu", "loses_gpu"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("own_process", [True, False])
def test_an_error_that_a_model_has_caught_is_of_a_lost_gpu_if_cuda_says_so(
    own_process: bool, raises: bool, uses_gpu: bool, loses_gpu: bool, driver: str, tmp_path: Path
) -> None:
    async def run() -> None:
        code = CATCHES.format(raises=raises, uses_gpu=uses_gpu, loses_gpu=loses_gpu).replace("libcuda.so.1", driver)
        async with Models(tmp_path / "models", own_process).add("catches", code).hosted() as call:
            before = await call("catches", 0)
            assert (await told(call, 1)).endswith("cannot answer: CUDA error: misaligned address")
            if own_process:
                assert (await call("catches", 0) != before) == (uses_gpu and loses_gpu)
            elif uses_gpu and loses_gpu:
                with pytest.raises(ModelFaultError, match=r"has lost its GPU: .*cannot answer"):
                    call.host.check(0)
            else:
                call.host.check(0)

    asyncio.run(run())


SENDS = (
    CATCHES.partition("    def execute")[0]
    + """
    def execute(self, requests):
        [request] = requests
        sender = request.get_response_sender()
        if x_of(request).as_numpy()[0]:
            error = pb_utils.TritonError("cannot answer: CUDA error: misaligned address")
            sender.send(pb_utils.InferenceResponse(error=error), flags=1)
        else:
            sender.send(answer(np.array([os.getpid()], np.int32)), flags=1)
"""
)


async def sent(call: Hosted, value: int) -> list[list[int]] | None:
    try:
        return await call.responses("sends", value)
    except ServingError:  # its process is about to end
        return None


@pytest.mark.parametrize("loses_gpu", [True, False])
@pytest.mark.parametrize("own_process", [True, False])
def test_so_is_one_that_a_decoupled_model_has_sent(
    own_process: bool, loses_gpu: bool, driver: str, tmp_path: Path
) -> None:
    async def run() -> None:
        code = SENDS.format(uses_gpu=True, loses_gpu=loses_gpu).replace("libcuda.so.1", driver)
        async with Models(tmp_path / "models", own_process).add("sends", code, DECOUPLED).hosted() as call:
            before = await call.responses("sends", 0)
            with pytest.raises(ServingError, match="cannot answer: CUDA error: misaligned address"):
                await call.responses("sends", 1)
            if own_process and loses_gpu:
                async with asyncio.timeout(60):
                    while await sent(call, 0) in (None, before):
                        await asyncio.sleep(0.01)
            elif own_process:
                assert await call.responses("sends", 0) == before
            elif loses_gpu:
                with pytest.raises(ModelFaultError, match="has lost its GPU: cannot answer"):
                    call.host.check(0)
            else:
                call.host.check(0)

    asyncio.run(run())


@pytest.mark.gpu
@on_a_gpu
def test_a_model_that_has_caught_the_failure_of_a_kernel_is_started_again(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")

    async def run() -> None:
        async with Models(tmp_path, True).add("catches", CATCHES_A_REAL_ONE).hosted() as call:
            before = await call("catches", 0)
            assert await call("catches", 2) == [2]
            assert (await told(call, 1000)).startswith("cannot answer: CUDA error: device-side assert triggered")
            assert await call("catches", 0) != before
            assert await call("catches", 2) == [2]

    asyncio.run(run())
