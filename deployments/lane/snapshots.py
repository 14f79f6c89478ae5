"""Collects the statistics of every replica that a lane leads to."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from deployments.lane.link import Link


async def collect(links: Iterable[Link], timeout_s: float) -> list[Any]:
    """Ask every replica for its statistics; one that does not answer in time stands with what it said last."""
    loop = asyncio.get_running_loop()
    asked: dict[asyncio.Future[Any], Link] = {}
    for link in links:
        if link.lane is not None:
            future: asyncio.Future[Any] = loop.create_future()
            link.lane.control(partial(_resolve, future))
            asked[future] = link
    if not asked:
        return []
    done, pending = await asyncio.wait(asked, timeout=timeout_s)
    for future in pending:
        future.cancel()
    for future in done:
        if future.result() is not None:
            asked[future].statistics = future.result()
    return [link.statistics for link in asked.values() if link.statistics is not None]


def _resolve(future: "asyncio.Future[Any]", answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
