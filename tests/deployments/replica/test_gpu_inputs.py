"""Inputs that a Python model gets in the memory of its GPU, where clients put them; `tests/cuda.c` stands for the driver.

The replica sees one GPU, the machine's second, as its first.
"""

import asyncio
import gc
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from deployments.lane.wire import GRPC, HTTP
from deployments.replica.region_row import Row
from deployments.replica.shared_memory import Regions
from protocol.errors import InvalidArgument, NotFound
from tests.deployments.lane.harness import Sink
from tests.deployments.replica.hosted_models import CONFIG, DECOUPLED, Hosted, Models, models, on_a_loop, unfrozen
from tests.e2e.device_clients import Allocation, allocated
from tests.gpus import build_driver, forget_driver, use_driver
from tests.serving import wait_until

__all__ = ["models", "unfrozen"]

FIRST, SECOND = "00" * 16, "01" * 16
KEEPS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
READS = """
import ctypes, gc, os, time

pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

def read(capsule, count):
    address = ctypes.c_uint64.from_address(pointer(capsule, b"dltensor")).value
    return np.array((ctypes.c_int32 * count).from_address(address))
"""
DOUBLES = (
    READS
    + """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for tensor in map(x_of, requests):
            if not tensor.is_cpu():
                assert tensor.__dlpack_device__() == (2, 0)
                answers.append(answer(read(tensor.to_dlpack(), tensor.shape()[0]) * 2))
            else:
                answers.append(answer(tensor.as_numpy() * -2))
        return answers
"""
)
"""The numbers times 2 where they are on the GPU, times -2 where they are not."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def driver(library: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    copy = shutil.copy(library, tmp_path_factory.mktemp("driver"))  # it looks once at what is visible
    use_driver(copy, "1", monkeypatch)
    yield
    gc.unfreeze()
    gc.collect()  # what is still open is closed by this driver
    forget_driver()


@pytest.fixture
def memory() -> Iterator[Allocation]:
    with allocated(512) as allocation:
        numbers = np.arange(64, dtype=np.int32)
        allocation.path.write_bytes(numbers.tobytes() * 2)
        yield allocation


def register(regions: Regions, memory: Allocation, name: str = "gpu", gpu: str = SECOND, byte_size: int = 512) -> None:
    """Add what an ingress that sees both GPUs has registered."""
    handle = bytes(memory.path).ljust(64, b"\0").hex()
    row = Row(name, handle, 0, byte_size, os.urandom(4).hex(), int(gpu[:2]), gpu)
    regions._table.change(lambda rows: [*rows, list(row)])


def place(offset: int, count: int, region: str = "gpu") -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": 4 * count}


def send(call: Hosted, name: str, parameters: dict[str, Any], count: int = 4) -> Sink:
    """Send a request as an ingress leaves it that has seen that the replica is on the region's GPU."""
    given = {"name": "X", "datatype": "INT32", "shape": [count], "parameters": parameters}
    sink, target = Sink(), call.host.target(name)
    assert target is not None
    target.submit((json.dumps({"inputs": [given]}).encode(),), None, sink, HTTP)
    return sink


async def numbers_of(sink: Sink) -> list[int]:
    async with asyncio.timeout(60):
        await sink.done.wait()
    if sink.error is not None:
        raise sink.error
    (output,) = json.loads(sink.responses[0])["outputs"]
    return list(output["data"])


async def ask(call: Hosted, name: str, parameters: dict[str, Any], count: int = 4) -> list[int]:
    return await numbers_of(send(call, name, parameters, count))


def open_anywhere(memory: Allocation) -> bool:
    gc.collect()
    found = False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found = found or str(memory.path) in (process / "maps").read_text()
        except OSError:
            pass
    return found


@on_a_loop
async def test_the_input_of_a_model_on_that_gpu_stays_there(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    async with models.add("doubles", DOUBLES, more=KEEPS).hosted() as call:
        register(call.host.regions, memory)
        assert [served.gpus for served in call.host.served.values()] == [(SECOND,)]
        for offset in (0, 40):
            first = offset // 4
            assert await ask(call, "doubles", place(offset, 4)) == [2 * (first + number) for number in range(4)]
        assert await call("doubles", 5, 6) == [-10, -12]


@on_a_loop
async def test_grpc_brings_it_too(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    async with models.add("doubles", DOUBLES, more=KEEPS).hosted() as call:
        register(call.host.regions, memory)
        request = ModelInferRequest(model_name="doubles")
        given = request.inputs.add(name="X", datatype="INT32", shape=[3])
        given.parameters["shared_memory_region"].string_param = "gpu"
        given.parameters["shared_memory_offset"].int64_param = 16
        given.parameters["shared_memory_byte_size"].int64_param = 12
        target = call.host.target("doubles")
        assert target is not None
        for _ in range(2):  # the second is recognised by its bytes
            sink = Sink()
            target.submit((request.SerializeToString(),), None, sink, GRPC)
            async with asyncio.timeout(60):
                await sink.done.wait()
            (content,) = ModelInferResponse.FromString(sink.responses[0]).raw_output_contents
            assert np.frombuffer(content, np.int32).tolist() == [8, 10, 12]


@pytest.mark.parametrize(
    ("kind", "more"),
    {
        "forced": ("GPU", KEEPS.replace("no", "yes")),
        "by default": ("GPU", ""),
        "on the CPU": ("CPU", KEEPS),
        "sequences": ("GPU", KEEPS + "sequence_batching { }"),
        "cache": ("GPU", KEEPS + "response_cache { enable: true }"),
    }.values(),
    ids=["forced", "by default", "on the CPU", "sequences", "cache"],
)
@on_a_loop
async def test_no_other_model_takes_inputs_there(tmp_path: Path, memory: Allocation, kind: str, more: str) -> None:
    models = Models(tmp_path, False)
    models.kind = kind
    async with models.add("doubles", DOUBLES, more=more).hosted() as call:
        register(call.host.regions, memory)
        assert [served.gpus for served in call.host.served.values()] == [()]
        with pytest.raises(NotFound, match="Unable to find shared memory region: 'gpu'"):
            await ask(call, "doubles", place(0, 4))


@on_a_loop
async def test_a_process_that_sees_no_gpu_takes_no_inputs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    models = Models(tmp_path, False)
    models.kind = "GPU"
    async with models.add("doubles", DOUBLES, more=KEEPS).hosted() as call:
        assert [served.gpus for served in call.host.served.values()] == [()]


TELLS = (
    READS
    + """
class TritonPythonModel:
    def execute(self, requests):
        [request] = requests
        [tensor] = request.inputs()
        try:
            tensor.as_numpy()
        except pb_utils.TritonModelException as error:
            text = str(error)
        assert text == "Tensor is stored in GPU and cannot be converted to NumPy."
        assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("X", [4], 8, False)
        assert pb_utils.get_input_tensor_by_name(request, "Z") is None
        capsules = [tensor.to_dlpack(), tensor.__dlpack__(stream=1), tensor.__dlpack__(stream=-1, max_version=(1, 0))]
        again = [pb_utils.Tensor.from_dlpack("Z", tensor), pb_utils.Tensor.from_dlpack("Z", tensor.to_dlpack())]
        assert [(each.name(), each.shape(), each.triton_dtype(), each.is_cpu()) for each in again] == [
            ("Z", [4], 8, False)
        ] * 2
        return [answer(np.concatenate([read(capsule, 4) for capsule in capsules]))]
"""
)


@on_a_loop
async def test_it_is_described_as_triton_does(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    async with models.add("tells", TELLS, more=KEEPS).hosted() as call:
        register(call.host.regions, memory)
        assert await ask(call, "tells", place(8, 4)) == [2, 3, 4, 5] * 3


@pytest.mark.parametrize("passed", ["tensor", "tensor.to_dlpack()"])
@pytest.mark.parametrize("framework", ["", "torch"], ids=["alone", "torch-for-the-CPU"])
@on_a_loop
async def test_it_may_be_an_output(models: Models, memory: Allocation, framework: str, passed: str) -> None:
    if framework and pytest.importorskip(framework).cuda.is_available():
        pytest.skip("this PyTorch asks CUDA's runtime, for which the stand-in is no driver")
    models.kind = "GPU"
    passes = f"""
    {framework and f"import {framework}"}
    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", {passed})])
                for tensor in map(x_of, requests)
            ]
    """
    async with models.add("passes", passes, more=KEEPS).hosted() as call:
        register(call.host.regions, memory)
        assert await ask(call, "passes", place(4, 4)) == [1, 2, 3, 4]


@on_a_loop
async def test_it_may_be_the_input_of_another_model(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    calls = """
    class TritonPythonModel:
        def execute(self, requests):
            return [
                outcome(
                    pb_utils.InferenceRequest(
                        model_name="doubles", inputs=[x_of(request)], requested_output_names=["Y"]
                    ).exec()
                )
                for request in requests
            ]
    """
    models.add("calls", calls, more=KEEPS).add("doubles", DOUBLES, more=KEEPS)
    async with models.hosted() as call:
        register(call.host.regions, memory)
        assert await ask(call, "calls", place(4, 4)) == [-2, -4, -6, -8]


@pytest.mark.parametrize(
    ("datatype", "content", "expected"),
    [("BOOL", bytes([0, 1, 2, 255]), [False, True, True, True]), ("BF16", bytes.fromhex("803f0040404000c0"), None)],
    ids=["BOOL", "BF16"],
)
@on_a_loop
async def test_datatypes_that_numpy_sees_otherwise(
    models: Models, memory: Allocation, datatype: str, content: bytes, expected: list[bool] | None
) -> None:
    models.kind = "GPU"
    config = CONFIG.replace("INT32", datatype)
    passes = """
    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", x_of(request))]) for request in requests
            ]
    """
    memory.path.write_bytes(content.ljust(512, b"\0"))
    async with models.add("passes", passes, config, KEEPS).hosted() as call:
        register(call.host.regions, memory)
        sink, target = Sink(), call.host.target("passes")
        assert target is not None
        given = {"name": "X", "datatype": datatype, "shape": [4]}
        given["parameters"] = {"shared_memory_region": "gpu", "shared_memory_byte_size": len(content)}
        wanted = {"name": "Y", "parameters": {"binary_data": True}}
        target.submit((json.dumps({"inputs": [given], "outputs": [wanted]}).encode(),), None, sink)
        async with asyncio.timeout(60):
            await sink.done.wait()
        assert sink.error is None
        assert sink.responses[0].endswith(content if expected is None else bytes(expected))


BATCHES = CONFIG.replace("max_batch_size: 0", "max_batch_size: 4")


@on_a_loop
async def test_a_request_whose_memory_cannot_be_opened_fails_alone(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    holds = DOUBLES.replace("        answers = []", "        time.sleep(0.3)\n        answers = []").replace(
        "tensor.shape()[0]", "tensor.shape()[1]"
    )
    models.add("doubles", holds.replace("* 2)", "[None] * 2)"), BATCHES, KEEPS + "dynamic_batching { }")
    async with models.hosted() as call:
        register(call.host.regions, memory)
        with allocated(512) as freed:
            register(call.host.regions, freed, "freed")
        register(call.host.regions, memory, "short", byte_size=1024)
        register(call.host.regions, memory, "elsewhere", FIRST)
        sinks = []
        for region in ("gpu", "gpu", "freed", "gpu", "short", "elsewhere"):
            given = {"name": "X", "datatype": "INT32", "shape": [1, 4], "parameters": place(0, 4, region)}
            sinks.append(Sink())
            target = call.host.target("doubles")
            assert target is not None
            target.submit((json.dumps({"inputs": [given]}).encode(),), None, sinks[-1])
        whats = {2: "cuIpcOpenMemHandle: CUDA_ERROR_MAP_FAILED", 4: "it has 512 bytes", 5: "its GPU is none of this"}
        for number, sink in enumerate(sinks):
            if number in whats:
                with pytest.raises(InvalidArgument, match=rf"cannot be opened .*: {whats[number]}"):
                    await numbers_of(sink)
            else:
                assert await numbers_of(sink) == [0, 2, 4, 6]


@on_a_loop
async def test_a_decoupled_model_gets_it_and_is_spared_what_cannot_be_opened(
    models: Models, memory: Allocation
) -> None:
    models.kind = "GPU"
    streams = (
        READS
        + """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(
                answer(read(x_of(request).to_dlpack(), 4)), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
"""
    )
    async with models.add("streams", streams, DECOUPLED, KEEPS).hosted() as call:
        register(call.host.regions, memory)
        with allocated(512) as freed:
            register(call.host.regions, freed, "freed")
        assert await ask(call, "streams", place(4, 4)) == [1, 2, 3, 4]
        with pytest.raises(InvalidArgument, match="'freed' cannot be opened in the process of the model"):
            await ask(call, "streams", place(4, 4, "freed"))
        assert await ask(call, "streams", place(8, 4)) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("region", "offset", "error", "text"),
    [
        ("unknown", 0, NotFound, "Unable to find shared memory region: 'unknown'"),
        ("gpu", 512, InvalidArgument, "Invalid offset for shared memory region: 'gpu'"),
        ("gpu", 500, InvalidArgument, r"Invalid offset \+ byte size for shared memory region: 'gpu'"),
    ],
)
@on_a_loop
async def test_a_range_that_is_not_there_is_refused(
    tmp_path: Path, memory: Allocation, region: str, offset: int, error: type[Exception], text: str
) -> None:
    models = Models(tmp_path, False)
    models.kind = "GPU"
    async with models.add("doubles", DOUBLES, more=KEEPS).hosted() as call:
        register(call.host.regions, memory)
        with pytest.raises(error, match=text):
            await ask(call, "doubles", place(offset, 4, region))


WAITS = (
    READS
    + """
from pathlib import Path

class TritonPythonModel:
    def execute(self, requests):
        [tensor] = map(x_of, requests)
        if tensor.is_cpu():
            while not Path(__file__).with_name("go").exists():
                time.sleep(0.001)
            return [answer(tensor.as_numpy())]
        return [answer(read(tensor.to_dlpack(), 4))]
"""
)


@on_a_loop
async def test_a_queued_request_gets_what_is_unregistered_meanwhile(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    async with models.add("waits", WAITS, more=KEEPS).hosted() as call:
        regions = call.host.regions
        register(regions, memory)
        first = call.start("waits", 5)
        queued = send(call, "waits", place(0, 4))
        regions.unregister("gpu", on_device=True)
        regions.forget()
        (models.root / "waits" / "1" / "go").touch()
        assert (await first)["Y"].tolist() == [5]
        assert await numbers_of(queued) == [0, 1, 2, 3]


@on_a_loop
async def test_it_is_closed_once_nobody_can_ask_for_it(models: Models, memory: Allocation) -> None:
    models.kind = "GPU"
    async with models.add("doubles", DOUBLES, more=KEEPS).hosted() as call:
        regions = call.host.regions
        for _ in range(2):
            register(regions, memory)
            for _ in range(2):
                assert await ask(call, "doubles", place(0, 4)) == [0, 2, 4, 6]
                assert open_anywhere(memory)
            regions.unregister(on_device=True)
            assert not regions.registered  # which looks at the table
            await asyncio.to_thread(wait_until, lambda: not open_anywhere(memory), "it is closed")


@on_a_loop
async def test_it_stays_open_while_a_capsule_is_in_use(models: Models, memory: Allocation) -> None:
    keeps = (
        READS
        + """
class TritonPythonModel:
    def execute(self, requests):
        [tensor] = map(x_of, requests)
        if not tensor.is_cpu():
            self.kept = tensor.to_dlpack()
            return [answer(read(self.kept, 4))]
        if tensor.as_numpy()[0]:
            return [answer(read(self.kept, 4))]
        del self.kept
        gc.collect()
        return [answer(np.zeros(1, np.int32))]
"""
    )
    models.kind = "GPU"
    async with models.add("keeps", keeps, more=KEEPS).hosted() as call:
        regions = call.host.regions
        register(regions, memory)
        assert await ask(call, "keeps", place(0, 4)) == [0, 1, 2, 3]
        regions.unregister(on_device=True)
        assert not regions.registered
        assert await call("keeps", 1) == [0, 1, 2, 3]
        assert open_anywhere(memory)
        assert await call("keeps", 0) == [0]
        await asyncio.to_thread(wait_until, lambda: not open_anywhere(memory), "it is closed")


@on_a_loop
async def test_a_new_process_opens_it_again(tmp_path: Path, memory: Allocation) -> None:
    pids = """
    import os
    class TritonPythonModel:
        def execute(self, requests):
            return [
                answer(np.array([os.getpid(), *pb_utils.Tensor.from_dlpack("Y", x_of(r)).shape()], np.int32))
                if not x_of(r).is_cpu()
                else answer(np.array([os.getpid()], np.int32))
                for r in requests
            ]
    """
    models = Models(tmp_path, True)
    models.kind = "GPU"
    async with models.add("pids", pids, more=KEEPS).hosted() as call:
        register(call.host.regions, memory)
        pid, count = await ask(call, "pids", place(0, 4))
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while True:
                try:
                    again, count = await ask(call, "pids", place(0, 4))
                except Exception:
                    await asyncio.sleep(0.05)
                else:
                    break
        assert again != pid and count == 4
        assert open_anywhere(memory)
