"""The process that loads one model once; started by `trial_load`."""

import asyncio
import logging
from typing import Any

from deployments.core.counts import Totals
from deployments.core.side_process import answer
from deployments.replica.model_host import ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.limits import Limits


async def _host(model: dict[str, Any]) -> str:
    """Host the model as a replica does; returns why it cannot be, "" when it can."""
    loop, regions = asyncio.get_running_loop(), Regions(OwnTable())
    host = ModelHost(loop, None, Limits(), Totals(), regions, shared=False, changed=lambda *_: None)
    await host.apply([model])
    failure, _ = next(iter(host.failures.values()), ("", ""))
    await host.close()
    return failure


def _load(task: dict[str, Any]) -> dict[str, Any]:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    return {"error": asyncio.run(_host(task))}


if __name__ == "__main__":
    answer(_load)
