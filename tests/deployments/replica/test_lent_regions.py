"""Tensors in clients' shared memory, and Python models here and in processes of their own, which map it too."""

import asyncio
import gc
import json
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.replica.handle_calls import HandleCall, HandleCalls
from deployments.replica.shared_memory import Regions
from tests.deployments.lane.harness import Sink
from tests.deployments.replica.hosted_models import CONFIG, Hosted, Models, models, on_a_loop, unfrozen
from tests.serving import wait_until

__all__ = ["models", "unfrozen"]

COUNT = 100_000
BYTES = 4 * COUNT
DOUBLES = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [x_of(r).as_numpy() for r in requests]
        for array in arrays:
            array *= 2
        return [answer(array) for array in arrays]
"""


class Client:
    """An object of shared memory with an input, and room for an answer behind it, registered as one region."""

    def __init__(self) -> None:
        self.path = Path("/dev/shm") / f"eagleray-test-{secrets.token_hex(8)}"
        self.path.write_bytes(bytes(2 * BYTES + 64))
        self.memory = np.memmap(self.path, np.int32, "r+", 64, 2 * COUNT)
        self.memory[:COUNT] = np.arange(COUNT)

    def register(self, regions: Regions) -> None:
        regions.register("both", f"/{self.path.name}", 64, 2 * BYTES)

    @property
    def answer(self) -> list[int]:
        return self.memory[COUNT:].tolist()  # type: ignore[no-any-return]


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.path.unlink(missing_ok=True)


def place(offset: int, size_bytes: int) -> dict[str, Any]:
    return {
        "shared_memory_region": "both",
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size_bytes,
    }


async def ask(call: Hosted, name: str, answer: dict[str, Any]) -> Sink:
    """Ask with the input in the region; `answer` says where that goes."""
    document = {
        "inputs": [{"name": "X", "datatype": "INT32", "shape": [COUNT], "parameters": place(0, BYTES)}],
        "outputs": [{"name": "Y", "parameters": answer}],
    }
    sink, target = Sink(), call.host.target(name)
    assert target is not None
    target.submit((json.dumps(document).encode(),), None, sink)
    async with asyncio.timeout(30):
        await sink.done.wait()
    return sink


def mapped_by_others(client: Client) -> int:
    """Return how many processes beside this one have mapped the object."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += int(process.name) != os.getpid() and client.path.name in (process / "maps").read_text()
        except OSError:
            pass
    return found


@on_a_loop
async def test_a_model_may_write_to_its_input_and_the_clients_stays(models: Models, client: Client) -> None:
    async with models.add("doubles", DOUBLES).hosted() as call:
        client.register(call.host.regions)
        for start in (0, 1000):
            client.memory[:COUNT] = np.arange(start, start + COUNT)
            sink = await ask(call, "doubles", place(BYTES, BYTES))
            assert sink.error is None
            assert client.answer == (2 * np.arange(start, start + COUNT)).tolist()
            assert client.memory[:COUNT].tolist() == np.arange(start, start + COUNT).tolist()


@on_a_loop
async def test_an_answer_may_take_the_place_of_its_input(models: Models, client: Client) -> None:
    async with models.add("doubles", DOUBLES).hosted() as call:
        client.register(call.host.regions)
        sink = await ask(call, "doubles", place(0, BYTES))
        assert sink.error is None
        assert client.memory[:COUNT].tolist() == (2 * np.arange(COUNT)).tolist()


@on_a_loop
async def test_an_answer_that_does_not_fit_is_an_error_and_not_written(models: Models, client: Client) -> None:
    async with models.add("doubles", DOUBLES).hosted() as call:
        client.register(call.host.regions)
        sink = await ask(call, "doubles", place(BYTES, BYTES - 4))
        assert sink.error is not None
        assert sink.error.message == (
            f"shared memory size specified with the request for output 'Y' ({BYTES - 4} bytes) "
            f"should be at least {BYTES} bytes to hold the results"
        )
        assert client.answer == [0] * COUNT


@on_a_loop
async def test_an_object_that_its_client_has_unlinked_still_serves(models: Models, client: Client) -> None:
    async with models.add("doubles", DOUBLES).hosted() as call:
        client.register(call.host.regions)
        client.path.unlink()
        client.path.write_bytes(bytes(2 * BYTES + 64))  # another one of the same name
        sink = await ask(call, "doubles", place(BYTES, BYTES))
        assert sink.error is None
        assert client.answer == (2 * np.arange(COUNT)).tolist()
        assert not any(client.path.read_bytes())


@on_a_loop
async def test_a_process_maps_a_region_as_long_as_its_replica_does(tmp_path: Path, client: Client) -> None:
    async with Models(tmp_path, own_processes=True).add("doubles", DOUBLES).hosted() as call:
        regions = call.host.regions
        for _ in range(2):
            client.register(regions)
            assert (await ask(call, "doubles", {"binary_data": True})).error is None
            assert mapped_by_others(client) == 1
            regions.unregister("both")
            assert not regions.registered  # which looks at the table
            gc.collect()
            await asyncio.to_thread(wait_until, lambda: not mapped_by_others(client), "the process forgets it")


@on_a_loop
async def test_a_new_process_hears_of_a_region_anew(tmp_path: Path, client: Client) -> None:
    dies = """
    import os
    class TritonPythonModel:
        def execute(self, requests):
            array = x_of(requests[0]).as_numpy()
            if array[0]:
                os._exit(1)
            return [answer(array + 1)]
    """
    async with Models(tmp_path, own_processes=True).add("dies", dies).hosted() as call:
        client.register(call.host.regions)
        assert (await ask(call, "dies", place(BYTES, BYTES))).error is None
        client.memory[0] = 1
        died = await ask(call, "dies", place(BYTES, BYTES))
        assert died.error is not None and "ended with exit code 1" in died.error.message
        client.memory[0] = 0
        client.memory[COUNT:] = 0
        async with asyncio.timeout(30):
            while (await ask(call, "dies", place(BYTES, BYTES))).error is not None:
                await asyncio.sleep(0.05)
        assert client.answer == list(range(1, COUNT + 1))


WAITS = """
import time
from pathlib import Path

class TritonPythonModel:
    def execute(self, requests):
        array = x_of(requests[0]).as_numpy()
        while len(array) == 1 and not Path(__file__).with_name("go").exists():
            time.sleep(0.001)
        return [answer(array + 1)]
"""


@pytest.mark.parametrize("known", [False, True], ids=["at once", "mapped before"])
@on_a_loop
async def test_a_client_that_makes_its_object_smaller_while_requests_wait_ends_no_process(
    models: Models, client: Client, known: bool
) -> None:
    async with models.add("waits", WAITS).hosted() as call:
        client.register(call.host.regions)
        if known:
            assert (await ask(call, "waits", place(BYTES, BYTES))).error is None
        first = call.start("waits", 5)
        waiting = [asyncio.create_task(ask(call, "waits", {"binary_data": True})) for _ in range(2)]
        await asyncio.sleep(0.1)
        os.truncate(client.path, 64)
        (models.root / "waits" / "1" / "go").touch()
        assert (await first)["Y"].tolist() == [6]
        for sink in await asyncio.gather(*waiting):
            assert sink.error is None
            assert np.frombuffer(sink.responses[0][-BYTES:], np.int32).tolist() == [1] * COUNT
        assert await call("waits", 1) == [2]


@on_a_loop
async def test_a_batch_may_be_of_more_regions_than_a_socket_holds_messages(tmp_path: Path, client: Client) -> None:
    count, size = 300, 320
    batching = CONFIG.replace("max_batch_size: 0", f"max_batch_size: {count} dynamic_batching {{ }}")
    tells = """
    import os
    class TritonPythonModel:
        def execute(self, requests):
            return [answer(x_of(r).as_numpy() + len(requests)) for r in requests] if len(requests) > 1 else [
                answer(np.array([[os.getpid()]], np.int32))
            ]
    """
    async with Models(tmp_path, own_processes=True).add("tells", tells, batching).hosted() as call:
        target = call.host.target("tells")
        assert target is not None
        one = HandleCall({"X": np.zeros((1, 1), np.int32)}, model_name="tells")
        pid = int((await HandleCalls(call.host, asyncio.get_running_loop()).submit(one))["Y"][0, 0])
        os.kill(pid, signal.SIGSTOP)
        sinks = []
        for number in range(count):
            call.host.regions.register(str(number), f"/{client.path.name}", 64 + number * 8 * size, 8 * size)
            where = {"shared_memory_region": str(number), "shared_memory_byte_size": 4 * size}
            tensor = {"name": "X", "datatype": "INT32", "shape": [1, size], "parameters": where}
            output = {"name": "Y", "parameters": where | {"shared_memory_offset": 4 * size}}
            sinks.append(sink := Sink())
            target.submit((json.dumps({"inputs": [tensor], "outputs": [output]}).encode(),), None, sink)
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        expected = client.memory[: 2 * size * count].reshape(count, 2, size)[:, 0] + count
        async with asyncio.timeout(60):
            for sink in sinks:
                await sink.done.wait()
                assert sink.error is None
        assert client.memory[: 2 * size * count].reshape(count, 2, size)[:, 1].tolist() == expected.tolist()
