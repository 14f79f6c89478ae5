"""Sequences that are under way while the instances of their model change."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deployments.core.counts import Totals
from deployments.replica.hosted_model import KEEPS_FORMER, HostedModel, packages_by_name
from deployments.replica.model_host import ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import InvalidArgument, ServingError
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.deployments.lane.harness import Sink
from tests.deployments.replica.hosted_models import PRELUDE, on_a_loop

CONFIG = """
backend: "python" max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
sequence_batching { direct {} max_sequence_idle_microseconds: 60000000 }
instance_group { count: %d }
"""
SUMS = """
import time

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        id = request.correlation_id()
        number = int(x_of(request).as_numpy()[0])
        time.sleep(max(0, -number))
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[id] = 0
        self.sums[id] += number
        return answer(np.array([self.sums[id]], np.int32))

    def finalize(self):
        with open(%r, "a") as file:
            file.write("x")
"""


class Sums:
    """A model that adds up each sequence, in a host."""

    def __init__(self, root: Path) -> None:
        self._root = root / "models"
        self._log = root / "finalized"
        (self._root / "sums" / "1").mkdir(parents=True)
        (self._root / "sums" / "1" / "model.py").write_text(PRELUDE + SUMS % str(self._log))
        loop, regions = asyncio.get_running_loop(), Regions(OwnTable())
        self.host = ModelHost(loop, None, Limits(), Totals(), regions, shared=False, changed=lambda *_: None)

    @property
    def finalized(self) -> int:
        return len(self._log.read_text()) if self._log.exists() else 0

    async def load(self, instances: int, revision: str = "", *, before: str | None = None) -> None:
        (self._root / "sums" / "config.pbtxt").write_text(CONFIG % instances)
        snapshot = load_repositories([str(self._root)], LoaderOptions(), None)
        plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))
        (only,) = plan.deployments[0].models
        told = HostedModel.of(only, packages_by_name(plan)).to_dict()
        told["package"]["revision"] = revision
        await self.host.apply(
            [told | {"digest": f"{instances} {revision}"} | ({} if before is None else {KEEPS_FORMER: before})]
        )
        assert not self.host.failures

    async def add(self, sequence: int, number: int, **flags: bool) -> int:
        """Send the next number of a sequence; returns the sum."""
        x = {"name": "X", "datatype": "INT32", "shape": [1], "data": [number]}
        body: dict[str, Any] = {"inputs": [x], "parameters": {"sequence_id": sequence, **flags}}
        sink, target = Sink(), self.host.target("sums")
        assert target is not None
        target.submit((json.dumps(body).encode(),), None, sink)
        await asyncio.wait_for(sink.done.wait(), 30)
        if sink.error is not None:
            raise sink.error
        return int(json.loads(sink.responses[0])["outputs"][0]["data"][0])

    async def until_finalized(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.finalized < count:
                await asyncio.sleep(0.02)
        assert self.finalized == count


async def refused(sums: Sums, sequence: int) -> bool:
    try:
        await sums.add(sequence, 1)
    except InvalidArgument as error:
        return "must specify the START flag" in error.message
    return False


@on_a_loop
async def test_sequences_go_on_in_the_instances_of_before(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(2)
    assert [await sums.add(id, 1, sequence_start=True) for id in (1, 2)] == [1, 1]
    await sums.load(1)
    assert [await sums.add(id, 2) for id in (1, 2)] == [3, 3]
    assert await sums.add(3, 5, sequence_start=True) == 5
    await sums.load(3)  # those of the first two go on where they are, the third in the one instance
    assert [await sums.add(id, 3) for id in (1, 2, 3)] == [6, 6, 8]
    assert sums.finalized == 0
    assert [await sums.add(id, 1, sequence_end=True) for id in (1, 2)] == [7, 7]
    await sums.until_finalized(2)
    assert await sums.add(3, 1, sequence_start=True) == 1  # which ends the one that nobody has ended
    await sums.until_finalized(3)
    assert [await sums.add(id, 1, sequence_start=True) for id in (1, 2)] == [1, 1]
    assert await sums.add(3, 1) == 2
    await sums.host.close()
    assert sums.finalized == 6


@on_a_loop
async def test_sequences_end_when_their_model_becomes_another(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(1)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(2)
    assert await sums.add(1, 1) == 2
    await sums.load(2, "of other files")
    assert await refused(sums, 1)
    await sums.until_finalized(3)
    await sums.host.close()


@on_a_loop
async def test_a_host_that_closes_waits_for_no_sequence(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(1)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(2)
    async with asyncio.timeout(20):
        await sums.host.close()
    assert sums.finalized == 3


@on_a_loop
async def test_a_sequence_that_starts_anew_follows_what_runs_of_it(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(2)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(1)
    running = asyncio.create_task(sums.add(1, -1))
    await asyncio.sleep(0)
    anew = asyncio.create_task(sums.add(1, 5, sequence_start=True))
    done, _ = await asyncio.wait({running, anew}, return_when=asyncio.FIRST_COMPLETED)
    assert (running in done, await running, await anew) == (True, 0, 5)
    await sums.host.close()


@on_a_loop
async def test_a_batch_of_an_instance_of_before_may_not_run_for_ever_either(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(1)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(2)
    running = asyncio.create_task(sums.add(1, -60))
    async with asyncio.timeout(10):
        while not running.done():
            await asyncio.sleep(0.05)
            sums.host.check(0.1)
    with pytest.raises(ServingError):
        await running
    await sums.host.close()
