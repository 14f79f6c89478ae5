"""Regions in the memory of a GPU, which here is a file: `tests/cuda.c` stands for CUDA's driver."""

import asyncio
import ctypes
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.replica import cuda_driver
from deployments.replica.cuda_driver import DeviceMemoryError, NoGpuError
from deployments.replica.device_memory import DeviceAllocation, visible_gpus
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import AlreadyExists, InvalidArgument, NotFound
from protocol.shared_memory import RegionRange
from tests.e2e.device_clients import Allocation, allocated
from tests.gpus import build_driver, forget_driver, use_driver

FIRST, SECOND = "00" * 16, "01" * 16


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_driver(str(library), "", monkeypatch)  # as Ray has it for an actor that has asked for no GPU
    yield
    forget_driver()


@pytest.fixture
def memory() -> Iterator[Allocation]:
    with allocated(512) as allocation:
        yield allocation


def handle_of(memory: Allocation) -> bytes:
    return bytes(memory.path).ljust(64, b"\0")


def is_open(memory: Allocation) -> bool:
    gc.collect()
    return str(memory.path) in Path("/proc/self/maps").read_text()


def register(regions: Regions, memory: Allocation, name: str = "gpu", byte_size: int = 512) -> None:
    asyncio.run(regions.register_device(name, handle_of(memory), 1, byte_size))


def test_memory_is_copied_and_open_as_long_as_it_is_used(memory: Allocation) -> None:
    allocation = DeviceAllocation(handle_of(memory), 0)
    assert allocation.size_bytes == 512
    allocation.write(100, b"abc")
    assert memory.path.read_bytes()[99:104] == b"\0abc\0"
    assert [allocation.read(101, size) for size in (0, 1, 2)] == [b"", b"b", b"bc"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert is_open(memory)
    del allocation
    assert not is_open(memory)


@pytest.mark.parametrize("device_id", [2, -1, 2**31 - 1, 2**32])
def test_a_gpu_that_is_not_there_is_refused(device_id: int, memory: Allocation) -> None:
    with pytest.raises(DeviceMemoryError, match=r"CUDA_ERROR_INVALID_DEVICE|there is no GPU 4294967296"):
        DeviceAllocation(handle_of(memory), device_id)


@pytest.mark.parametrize("handle", [b"", b"x" * 63, b"x" * 65, b"/nowhere".ljust(64, b"\0"), b"x" * 64])
def test_what_is_no_handle_is_refused(handle: bytes) -> None:
    with pytest.raises(DeviceMemoryError):
        DeviceAllocation(handle, 0)


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, memory: Allocation) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libno-such-driver.so")
    with pytest.raises(NoGpuError):
        DeviceAllocation(handle_of(memory), 0)
    with pytest.raises(InvalidArgument, match="CUDA shared memory region: 'gpu', GPUs not supported"):
        register(Regions(OwnTable(), opens_devices=True), memory)


def test_every_ingress_opens_a_region_and_no_replica_does(memory: Allocation) -> None:
    table = OwnTable()
    one, two, replica = Regions(table, opens_devices=True), Regions(table, opens_devices=True), Regions(table)
    register(one, memory)
    one.open(RegionRange("gpu", 8, 4)).write(b"abcd")
    assert two.open(RegionRange("gpu", 8, 4)).read() == b"abcd"
    assert (one.on_devices, two.on_devices, replica.on_devices) == (True, True, False)
    for regions in (one, two, replica):
        with pytest.raises(NotFound, match="Unable to find shared memory region: 'gpu'"):
            regions.view("gpu", 0, 1)
    one.unregister("gpu", on_device=True)
    assert not two.on_devices
    with pytest.raises(NotFound):
        two.open(RegionRange("gpu", 0, 1))
    assert not is_open(memory)


def test_a_place_that_a_request_has_stays_when_the_region_is_unregistered(memory: Allocation) -> None:
    regions = Regions(OwnTable(), opens_devices=True)
    register(regions, memory)
    place = regions.open(RegionRange("gpu", 0, 4))
    regions.unregister(on_device=True)
    place.write(b"late")
    assert memory.path.read_bytes()[:5] == b"late\0"
    del place
    assert not is_open(memory)


@pytest.mark.parametrize(("offset", "size"), [(-256, 16), (-1, 0), (0, -1), (256, -1)])
def test_a_range_that_begins_before_a_region_or_ends_before_it_begins_is_refused(
    offset: int, size: int, memory: Allocation
) -> None:
    regions = Regions(OwnTable(), opens_devices=True)
    register(regions, memory)
    with pytest.raises(InvalidArgument, match=r"Invalid offset( [+] byte size)? for shared memory region: 'gpu'"):
        regions.open(RegionRange("gpu", offset, size))


def test_every_process_knows_the_gpu_of_a_region_by_its_uuid(memory: Allocation) -> None:
    table = OwnTable()
    one, two = Regions(table, opens_devices=True), Regions(table, opens_devices=True)
    register(one, memory)
    assert two.on_devices
    assert [regions.gpu_of("gpu") for regions in (one, two)] == [SECOND, SECOND]
    assert one.gpu_of("another") == ""


@pytest.mark.parametrize(
    ("visible", "expected"), {"0,1": (FIRST, SECOND), "1,0": (SECOND, FIRST), "1": (SECOND,), "": (), "7": ()}.items()
)
def test_a_process_sees_the_gpus_that_it_was_given(
    visible: str, expected: tuple[str, ...], library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_driver(shutil.copy(library, tmp_path), visible, monkeypatch)
    assert visible_gpus() == expected


def test_without_a_driver_no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    use_driver("libno-such-driver.so", "0", monkeypatch)
    assert visible_gpus() == ()


def test_a_thread_keeps_the_context_that_it_had(library: Path, memory: Allocation) -> None:
    driver, own, found = ctypes.CDLL(str(library)), ctypes.c_void_p(0xC0), ctypes.c_void_p()
    driver.cuCtxPushCurrent_v2(own)
    allocation = DeviceAllocation(handle_of(memory), 1)
    allocation.write(0, allocation.read(8, 8))
    with pytest.raises(DeviceMemoryError):
        allocation.read(500, 100)
    del allocation
    assert not is_open(memory)
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(found)) == 0
    assert found.value == own.value
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(found)) != 0


def test_a_name_is_of_one_kind(memory: Allocation) -> None:
    regions = Regions(OwnTable(), opens_devices=True)
    register(regions, memory)
    for again in (lambda: register(regions, memory), lambda: regions.register("gpu", "/any", 0, 1)):
        with pytest.raises(AlreadyExists, match="shared memory region 'gpu' already in manager"):
            again()
    regions.unregister("gpu")
    regions.unregister()
    assert regions.status(on_device=True) == [{"name": "gpu", "device_id": 1, "byte_size": 512}]
    with pytest.raises(NotFound, match="is registered as CUDA shared memory, not system shared memory"):
        regions.status("gpu")


def test_a_region_larger_than_its_memory_is_refused(memory: Allocation) -> None:
    regions = Regions(OwnTable(), opens_devices=True)
    for byte_size in (0, 513, 2**64 - 1):
        with pytest.raises(InvalidArgument, match="failed to register shared memory region 'gpu': invalid args"):
            register(regions, memory, byte_size=byte_size)
    assert not is_open(memory)
    assert regions.status(on_device=True) == []
