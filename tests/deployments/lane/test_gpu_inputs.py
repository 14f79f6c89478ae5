"""Which inputs in the memory of GPUs an ingress leaves where they are: those that the replica takes from there."""

import asyncio
import secrets
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest

from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.lane.remote_regions import inline
from deployments.lane.wire import GRPC, HTTP
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import InvalidArgument, QueueFull
from protocol.infer import InferRequest
from tests.deployments.lane.harness import NODE, Lanes, Replica, Sink

GPUS = {"on_a": "GPU-a", "on_b": "GPU-b"}
NUMBERS = np.arange(4, dtype=np.int32)


class OnGpus(Regions):
    """Some regions are taken for memory of a GPU by their names."""

    @property
    def on_devices(self) -> bool:
        return True

    def is_on_device(self, region: str) -> bool:
        return region in GPUS

    def gpu_of(self, region: str) -> str:
        return GPUS.get(region, "")


@pytest.fixture
def regions() -> Iterator[OnGpus]:
    path = Path("/dev/shm") / f"eagleray-test-{secrets.token_hex(8)}"
    path.write_bytes(NUMBERS.tobytes() * 4)
    regions = OnGpus(OwnTable())
    for number, name in enumerate(("on_a", "on_b", "on_host")):
        regions.register(name, f"/{path.name}", 16 * number, 16)
    yield regions
    path.unlink()


def tensor(name: str, region: str, datatype: str = "INT32") -> dict[str, Any]:
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": 16}
    return {"name": name, "datatype": datatype, "shape": [4], "parameters": parameters}


def kept(parts: Any, length: int | None) -> list[bool]:
    header = orjson.loads(b"".join(parts)[:length])
    return ["shared_memory_region" in each["parameters"] for each in header["inputs"]]


def test_numbers_on_a_gpu_of_the_replica_stay_there(regions: OnGpus) -> None:
    inputs = [tensor("A", "on_a"), tensor("B", "on_b"), tensor("C", "on_host"), tensor("D", "on_a", "BYTES")]
    body = orjson.dumps({"inputs": inputs})
    apart = partial(inline, [body], None, HTTP, regions, Sink())
    for gpus, far, found, named in (
        (("GPU-a",), False, [True, False, True, False], {"GPU-a"}),
        (("GPU-a", "GPU-b"), False, [True, True, True, False], {"GPU-a", "GPU-b"}),
        ((), False, [False, False, True, False], set()),
        ((), True, [False, False, False, False], set()),
    ):
        parts, length, _, left = apart(far=far, gpus=gpus)
        assert (kept(parts, length), left) == (found, named)
        assert length is not None
        copies = found.count(False)
        assert b"".join(parts)[length:] == NUMBERS.tobytes() * copies


def test_outputs_on_a_gpu_are_copied_there_all_the_same(regions: OnGpus) -> None:
    wanted = {"name": "X", "parameters": {"shared_memory_region": "on_b", "shared_memory_byte_size": 16}}
    body = orjson.dumps({"inputs": [tensor("A", "on_a")], "outputs": [wanted]})
    client = Sink()
    parts, length, sink, _ = inline([body], None, HTTP, regions, client, far=False, gpus=("GPU-a", "GPU-b"))
    assert orjson.loads(b"".join(parts)[:length])["outputs"][0]["parameters"] == {"binary_data": True}
    described = {"outputs": [{"name": "X", "datatype": "INT32", "shape": [4]}]}
    described["outputs"][0]["parameters"] = {"binary_data_size": 16}
    head = orjson.dumps(described)
    sink.on_response(len(head), [head, (NUMBERS * 3).tobytes()], True)
    assert bytes(regions.view("on_b", 0, 16)) == (NUMBERS * 3).tobytes()


def test_a_range_outside_a_region_that_would_stay_is_refused(regions: OnGpus) -> None:
    given = tensor("A", "on_a")
    given["parameters"]["shared_memory_offset"] = 8
    with pytest.raises(InvalidArgument, match=r"Invalid offset \+ byte size for shared memory region: 'on_a'"):
        inline([orjson.dumps({"inputs": [given]})], None, HTTP, regions, Sink(), far=False, gpus=("GPU-a",))


def test_the_raw_contents_of_a_grpc_request_stay_in_the_order_of_its_inputs(regions: OnGpus) -> None:
    request = ModelInferRequest(model_name="echo")
    for name, region in (("A", "on_a"), ("B", ""), ("C", "on_b"), ("D", "on_host"), ("E", "")):
        given = request.inputs.add(name=name, datatype="INT32", shape=[4])
        if region:
            given.parameters["shared_memory_region"].string_param = region
            given.parameters["shared_memory_byte_size"].int64_param = 16
    request.raw_input_contents.extend([b"b" * 16, b"e" * 16])
    parts, *_ = inline([request.SerializeToString()], None, GRPC, regions, Sink(), far=False, gpus=("GPU-a",))
    brought = ModelInferRequest.FromString(b"".join(parts))
    assert list(brought.raw_input_contents) == [b"b" * 16, NUMBERS.tobytes(), b"e" * 16]
    assert ["shared_memory_region" in each.parameters for each in brought.inputs] == [True, False, False, True, False]


class Node:
    """A fleet that has the regions, and replicas of a model on GPUs; `echo` answers with the request as it came."""

    def __init__(self, regions: OnGpus, *gpus: tuple[str, ...], spill: int = -1) -> None:
        self._regions = regions
        self._gpus = gpus
        self._spill = spill
        self._folder = tempfile.TemporaryDirectory()

    async def __aenter__(self) -> "Node":
        loop = asyncio.get_running_loop()
        self.replicas = [Replica(self._folder.name, f"r{number}", loop) for number in range(len(self._gpus))]
        for number, (replica, gpus) in enumerate(zip(self.replicas, self._gpus, strict=True)):
            replica.model.gpus = gpus
            replica.server.spill = number == self._spill
            replica.model.capacity = 1
            await replica.server.listen([replica.sock])
        self.fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()), regions=self._regions, away_s=0.0)
        self.fleet.set_replicas("echo#v1", {each.address.replica_id: each.address for each in self.replicas})
        await Lanes.until(lambda: self.fleet.lane_count == len(self.replicas) and self._all_welcome())
        return self

    def _all_welcome(self) -> bool:
        return all(lane.welcome for lane in self.fleet._open)

    async def __aexit__(self, *args: Any) -> None:
        await self.fleet.close()
        for replica in self.replicas:
            await replica.server.drain(0.0)
        self._folder.cleanup()

    def send(self, region: str) -> Sink:
        sink, target = Sink(), self.fleet.target("echo")
        assert target is not None
        target.submit((orjson.dumps({"inputs": [tensor("A", region)]}),), None, sink)
        return sink

    async def stays(self, sink: Sink) -> bool:
        """Whether the request came to its replica as it was sent; else with the numbers in it."""
        async with asyncio.timeout(5):
            await sink.done.wait()
        assert sink.error is None
        (body,) = sink.responses
        stays = b"shared_memory_region" in body
        assert stays or body.endswith(NUMBERS.tobytes())
        return stays


def test_a_replica_takes_what_is_on_its_own_gpu(regions: OnGpus) -> None:
    async def run() -> None:
        async with Node(regions, ("GPU-a",)) as node:
            assert [await node.stays(node.send(region)) for region in ("on_a", "on_b", "on_host")] == [
                True,
                False,
                True,
            ]
        async with Node(regions, ()) as node:
            assert not await node.stays(node.send("on_a"))

    asyncio.run(run())


def test_the_replica_on_another_gpu_gets_a_copy(regions: OnGpus) -> None:
    async def run() -> None:
        async with Node(regions, ("GPU-a",), ("GPU-b",)) as node:
            for replica in node.replicas:
                replica.model.hold = True
            sinks = [node.send("on_a") for _ in range(2)]
            await Lanes.until(lambda: all(len(replica.model.held) == 1 for replica in node.replicas))
            for replica in node.replicas:
                replica.model.release()
            assert sorted([await node.stays(sink) for sink in sinks]) == [False, True]

    asyncio.run(run())


def test_the_cpu_group_of_the_model_gets_a_copy(regions: OnGpus) -> None:
    async def run() -> None:
        async with Node(regions, ("GPU-a",), (), spill=1) as node:
            for replica in node.replicas:
                replica.model.hold = True
            first, second = node.send("on_a"), node.send("on_a")
            await Lanes.until(lambda: all(len(replica.model.held) == 1 for replica in node.replicas))
            for replica in node.replicas:
                replica.model.release()
            assert (await node.stays(first), await node.stays(second)) == (True, False)

    asyncio.run(run())


def test_a_request_whose_replica_dies_is_copied_for_one_on_another_gpu(regions: OnGpus) -> None:
    async def run() -> None:
        async with Node(regions, ("GPU-a",), ("GPU-b",)) as node:
            one, other = node.replicas
            one.model.hold = other.model.hold = True
            sinks = [node.send("on_a") for _ in range(2)]
            await Lanes.until(lambda: bool(one.model.held and other.model.held))
            other.model.hold = False
            other.model.release()
            one.die()
            assert [await node.stays(sink) for sink in sinks] == [False, False]

    asyncio.run(run())


def test_a_request_that_finds_a_full_queue_is_copied_for_one_on_another_gpu(regions: OnGpus) -> None:
    async def run() -> None:
        async with Node(regions, ("GPU-a",), ("GPU-b",)) as node:
            full, _ = node.replicas
            full.model.submit_request = _refuse
            for _ in range(20):  # by chance half of them find the full one first
                assert not await node.stays(node.send("on_a"))

    asyncio.run(run())


def _refuse(request: InferRequest) -> None:
    request.reply(request, QueueFull())
