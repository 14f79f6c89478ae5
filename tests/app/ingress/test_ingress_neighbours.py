import asyncio
from types import SimpleNamespace
from typing import Any

from app.ingress.ingress_neighbours import IngressNeighbours
from deployments.control.directory import READY, Directory, ModelEntry, VersionEntry
from protocol.signature import Signature
from tests.deployments.lane.harness import Lanes


def test_a_model_whose_last_replica_died_is_found_while_requests_wait_for_the_next() -> None:
    async def run() -> None:
        directory = Directory("epoch", models={"echo": ModelEntry("{}", versions={1: VersionEntry(READY)})})
        service: Any = SimpleNamespace(models=SimpleNamespace(directory=directory))
        async with Lanes() as lanes:
            found: list[Signature | None] = []
            neighbours = IngressNeighbours(service, lanes.fleet, lambda signatures: None)
            lanes.replicas[0].die()
            await lanes.until(lambda: lanes.lanes_open == 0)
            neighbours.find("echo", -1, found.append)
            lanes.fleet.expect(set())
            neighbours.find("echo", -1, found.append)
            assert [signature is not None for signature in found] == [True, False]

    asyncio.run(run())
