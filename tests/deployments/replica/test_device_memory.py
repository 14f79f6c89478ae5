"""Memory of a real GPU that another process shares."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen

import numpy as np
import pytest

from deployments.replica.cuda_driver import DeviceMemoryError
from deployments.replica.device_memory import DeviceAllocation, uuid_of
from deployments.replica.region_row import Row
from tests.deployments.lane.harness import Sink
from tests.deployments.replica.hosted_models import Models, models, on_a_loop, unfrozen
from tests.gpus import on_a_gpu

__all__ = ["models", "unfrozen"]

SIZE = 512
CONTENT = bytes(range(256)) * 2
OWNER = f"""
import ctypes, sys

cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)

device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
size, content, handle = ctypes.c_size_t({SIZE}), (ctypes.c_char * {SIZE})(), (ctypes.c_char * 64)()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(address), size)
call("cuMemcpyHtoD_v2", address, {CONTENT!r}, size)
call("cuIpcGetMemHandle", handle, address)
print(handle.raw.hex(), flush=True)
sys.stdin.readline()
call("cuMemcpyDtoH_v2", content, address, size)
print(content.raw.hex(), flush=True)
sys.stdin.readline()
"""


READS_WITH_TORCH = """
import torch

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for tensor in map(x_of, requests):
            assert not tensor.is_cpu() and tensor.__dlpack_device__() == (2, 0)
            numbers = torch.from_dlpack(tensor)
            assert numbers.is_cuda and torch.equal(numbers, torch.from_dlpack(tensor.to_dlpack()))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", numbers + 1)]))
        return answers
"""
READS_WITHOUT_TORCH = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", x_of(r).to_dlpack())]) for r in requests
        ]
"""


@contextmanager
def owner() -> Iterator[tuple[bytes, Popen[str]]]:
    """A process that has allocated memory, and its handle; at the next line it tells what is in it."""
    with Popen((sys.executable, "-c", OWNER), stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield bytes.fromhex(process.stdout.readline()), process
        process.stdin.close()


@pytest.mark.gpu
@on_a_gpu
def test_memory_of_another_process_is_read_and_written() -> None:
    with owner() as (handle, process):
        assert process.stdin is not None and process.stdout is not None
        allocation = DeviceAllocation(handle, 0)
        assert allocation.size_bytes >= SIZE
        assert allocation.read(0, SIZE) == CONTENT
        assert allocation.read(255, 3) == b"\xff\x00\x01"
        allocation.write(100, b"abc")
        process.stdin.write("\n")
        process.stdin.flush()
        assert bytes.fromhex(process.stdout.readline()) == CONTENT[:100] + b"abc" + CONTENT[103:]
        del allocation
        for wrong in (b"x" * 64, handle[::-1]):
            with pytest.raises(DeviceMemoryError, match="cuIpcOpenMemHandle"):
                DeviceAllocation(wrong, 0)
        with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_INVALID_DEVICE"):
            DeviceAllocation(handle, 1000)


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("code", [READS_WITH_TORCH, READS_WITHOUT_TORCH], ids=["torch", "no framework"])
@on_a_loop
async def test_a_model_gets_its_input_where_another_process_has_put_it(models: Models, code: str) -> None:
    models.kind = "GPU"
    models.add("reads", code, more='parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }')
    expected = np.frombuffer(CONTENT, np.int32)[2:6] + (code is READS_WITH_TORCH)
    async with models.hosted() as call:
        with owner() as (handle, _):
            row = Row("gpu", handle.hex(), 0, SIZE, "serial", 0, uuid_of(0))
            call.host.regions._table.change(lambda rows: [*rows, list(row)])
            place = {"shared_memory_region": "gpu", "shared_memory_offset": 8, "shared_memory_byte_size": 16}
            given = {"name": "X", "datatype": "INT32", "shape": [4], "parameters": place}
            target = call.host.target("reads")
            assert target is not None
            for _ in range(2):
                sink = Sink()
                target.submit((json.dumps({"inputs": [given]}).encode(),), None, sink)
                async with asyncio.timeout(60):
                    await sink.done.wait()
                assert sink.error is None
                (output,) = json.loads(sink.responses[0])["outputs"]
                assert output["data"] == expected.tolist()
            call.host.regions.unregister(on_device=True)
            call.host.regions.forget()


@pytest.mark.gpu
@on_a_gpu
def test_memory_whose_owner_has_died_does_no_harm_to_other_memory() -> None:
    with owner() as (handle, process):
        left = DeviceAllocation(handle, 0)
        process.kill()
        process.wait()
    with suppress(DeviceMemoryError):  # the driver may keep it as long as it is open here
        assert left.read(0, SIZE) == CONTENT
    del left
    with owner() as (handle, _):
        for _ in range(2):
            assert DeviceAllocation(handle, 0).read(0, SIZE) == CONTENT
        one, same = DeviceAllocation(handle, 0), DeviceAllocation(handle, 0)
        del one
        assert same.read(0, SIZE) == CONTENT
