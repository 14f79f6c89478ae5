"""One replica, and the lane to it that is kept open."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from deployments.lane.address import ReplicaAddress
from deployments.lane.client import LaneClient, LaneOwner

logger = logging.getLogger(__name__)

_RECONNECT_FIRST_S: Final = 0.05
_RECONNECT_LAST_S: Final = 1.0


class Link:
    """Opens a lane to a replica, and opens it again when it is lost, until it is dismissed.

    `opened` is called with each new lane before anything else is sent on it; what happens to it then goes to `owner`.
    """

    def __init__(
        self,
        address: ReplicaAddress,
        node_id: str,
        owner: LaneOwner,
        opened: Callable[["Link", LaneClient], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.lane: LaneClient | None = None
        self._address = address
        self._node_id = node_id
        self._owner = owner
        self._opened = opened
        self._loop = loop
        self._lost = asyncio.Event()
        self._task = loop.create_task(self._keep_open(), name=f"lane to {address.replica_id}")

    def lose(self) -> None:
        """Note that the lane is gone."""
        self.lane = None
        self._lost.set()

    def dismiss(self) -> None:
        """Open no further lane; the one that is open stays until what is under way on it is answered."""
        self._task.cancel()

    async def close(self) -> None:
        """Close the lane and open no other."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self.lane is not None:
            self.lane.close()

    async def _keep_open(self) -> None:
        delay_s = _RECONNECT_FIRST_S
        while True:
            try:
                lane = await self._connect()
            except OSError as error:
                logger.debug("no lane to %s yet: %s", self._address.replica_id, error)
            else:
                self.lane = lane
                self._lost.clear()
                self._opened(self, lane)
                delay_s = _RECONNECT_FIRST_S
                await self._lost.wait()
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RECONNECT_LAST_S)

    async def _connect(self) -> LaneClient:
        address, near = self._address, self._address.node_id == self._node_id
        lane = LaneClient(address.secret, self._owner, self._loop, near=near)
        if near:
            await self._loop.create_unix_connection(partial(_same, lane), address.unix_path)
            lane.share()
        else:
            await self._loop.create_connection(partial(_same, lane), address.tcp_host, address.tcp_port)
        return lane


def _same(lane: LaneClient) -> LaneClient:
    return lane
