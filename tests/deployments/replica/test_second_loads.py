"""Models that do not load at first are tried again by the process that hosts them."""

import asyncio
from pathlib import Path

import pytest

from tests.deployments.replica.test_model_host import host_of, planned

LOADS_LATE = """
import os


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(args["model_repository"], "tries"), "a+") as file:
            file.write("x")
            file.seek(0)
            if len(file.read()) < 3:
                raise RuntimeError("the disk is not mounted yet")

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize(("retry_count", "tries"), [(0, 1), (1, 2), (5, 3)])
def test_a_model_that_does_not_load_is_tried_so_often_again(tmp_path: Path, retry_count: int, tries: int) -> None:
    told = planned(tmp_path, "late", LOADS_LATE, "")

    async def check() -> None:
        host = await host_of(told, retry_count=retry_count)
        assert (host.target("late") is not None) == (tries == 3)
        assert ("late", 1) in (host.served if tries == 3 else host.failures)
        await host.close()

    asyncio.run(check())
    assert (tmp_path / "late/tries").read_text() == "x" * tries


def test_what_failed_is_loaded_when_the_controller_says_so_while_it_is_wanted(tmp_path: Path) -> None:
    told, tries = planned(tmp_path, "late", LOADS_LATE, ""), tmp_path / "late/tries"

    async def check() -> None:
        host = await host_of(told)
        assert not await host.try_again([("another", 1)])
        assert await host.try_again([("late", 1)])
        assert ("late", 1) in host.failures and len(tries.read_text()) == 2
        assert await host.try_again([("late", 1)])
        assert host.target("late") is not None and not host.failures
        assert not await host.try_again([("late", 1)]), "it serves"
        await host.apply([])
        tries.unlink()
        await host.apply([told])
        await host.apply([])
        assert not await host.try_again([("late", 1)]), "nobody wants it"
        assert len(tries.read_text()) == 1
        await host.close()

    asyncio.run(check())
