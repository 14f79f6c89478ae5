"""The files that one request passes are those that `docs/architecture.md` lists, in its order: one is followed."""

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.http.wire import Wire
from tests.deployments.lane.harness import Lanes
from tests.deployments.replica.hosted_models import Models
from tests.repositories import write_small_models
from tests.serving import ROOT, tensor

NOT_ALWAYS = {"app/service/routing.py", "app/http/infer_exchange.py", "deployments/lane/arena.py"}
"""What asks the directory for the target, which the test knows; what compressed requests and large ones pass."""
OTHERWISE = {f"deployments/schedulers/{name}.py" for name in ("even_batches", "dynamic", "default")}
"""What other models have in place of the one that is named before."""


def listed() -> list[str]:
    """Return the first file of each row of the page's table, and those that are named with it, in their order."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("### The files that one request passes")[2].partition("By gRPC")[0]
    rows = [line for line in table.splitlines() if line.startswith("|") and ".py" in line]
    return [found for row in rows for found in re.findall(r"`((?:app|deployments|protocol)/[\w/]+\.py)`", row)]


class Follower:
    """Notes from which file of ours to which other one calls go, in all threads."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(ROOT)) and "/tests/" not in name and "/.venv/" not in name:
            path = str(Path(name).relative_to(ROOT))
            if not self.files or self.files[-1] != path:
                self.files.append(path)


@pytest.fixture
def follower() -> Iterator[Follower]:
    """Follows the threads that start from now on; this one follows itself."""
    made = Follower()
    threading.setprofile(made)
    yield made
    sys.setprofile(None)
    threading.setprofile(None)


def passed_in_order(wanted: list[str], files: list[str]) -> list[str]:
    """Return what of `wanted` is not found behind what comes before it."""
    missed, at = [], 0
    for path in wanted:
        if path in files[at:]:
            at = files.index(path, at)
        else:
            missed.append(path)
    return missed


def test_a_request_passes_the_files_that_the_page_lists_in_their_order(follower: Follower, tmp_path: Path) -> None:
    async def run() -> None:
        write_small_models(tmp_path)
        async with Models(tmp_path, own_processes=False).hosted("simple") as hosted, Lanes() as lanes:
            lanes.replicas[0].server.set_model("simple", 1, hosted.host.served[("simple", 1)])
            await lanes.until(lambda: lanes.fleet.target("simple") is not None)
            target = lanes.fleet.target("simple")
            wire = Wire(routes=_Routes(target))
            inputs = [tensor(name, "INT32", [1, 16], [1] * 16) for name in ("INPUT0", "INPUT1")]
            body = str({"inputs": inputs}).replace("'", '"').encode()
            head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
            follower.files.clear()
            sys.setprofile(follower)
            answered = wire.transport
            wire._deliver(head + body)
            await lanes.until(lambda: b'"data":[2,2,' in answered.written)
            sys.setprofile(None)

    asyncio.run(run())
    wanted = [path for path in listed() if path not in NOT_ALWAYS | OTHERWISE]
    assert len(wanted) > 15
    assert passed_in_order(wanted, follower.files) == []


class _Routes:
    def __init__(self, target: Any) -> None:
        self.target = target

    def resolve(self, quoted_name: bytes, version: int) -> Any:
        return self.target
