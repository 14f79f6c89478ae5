"""Memory of a real GPU that another process shares."""

import subprocess
import sys

import pytest

from deployments.replica.device_memory import DeviceAllocation, DeviceMemoryError
from tests.gpus import on_a_gpu

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


@pytest.mark.gpu
@on_a_gpu
def test_memory_of_another_process_is_read_and_written() -> None:
    command = (sys.executable, "-c", OWNER)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        handle = bytes.fromhex(owner.stdout.readline())
        allocation = DeviceAllocation(handle, 0)
        assert allocation.size_bytes >= SIZE
        assert allocation.read(0, SIZE) == CONTENT
        assert allocation.read(255, 3) == b"\xff\x00\x01"
        allocation.write(100, b"abc")
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert bytes.fromhex(owner.stdout.readline()) == CONTENT[:100] + b"abc" + CONTENT[103:]
        del allocation
        for wrong in (b"x" * 64, handle[::-1]):
            with pytest.raises(DeviceMemoryError, match="cuIpcOpenMemHandle"):
                DeviceAllocation(wrong, 0)
        with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_INVALID_DEVICE"):
            DeviceAllocation(handle, 1000)
        owner.stdin.close()
