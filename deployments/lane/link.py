"""One replica, and the lane to it that is kept open."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from deployments.lane.address import ReplicaAddress
from deployments.lane.client import LaneCall, LaneClient, LaneOwner
from deployments.lane.death_mark import read_death_mark
from deployments.log.line_format import about_trace

logger = logging.getLogger(__name__)

_RECONNECT_FIRST_S: Final = 0.05
_RECONNECT_LAST_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 5.0
WARN_AFTER_S: Final = 3.0


class Link:
    """Opens a lane to a replica, and opens it again when it is lost, until it is dismissed.

    When that has failed for `WARN_AFTER_S`, each reason for it is logged, once in the life of the link.

    `deployment` is that of the replica, as application#deployment.
    `opened` is called with each new lane before anything else is sent on it; what happens to it then goes to `owner`.
    """

    def __init__(
        self,
        address: ReplicaAddress,
        deployment: str,
        node_id: str,
        owner: LaneOwner,
        opened: Callable[["Link", LaneClient], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.lane: LaneClient | None = None
        self._address = address
        self._deployment = deployment
        self._node_id = node_id
        self._owner = owner
        self._opened = opened
        self._loop = loop
        self._lost = asyncio.Event()
        self._refusal = ""
        self._failing_since: float | None = None
        self._warned: set[str] = set()
        self._task = loop.create_task(self._keep_open(), name=f"lane to {address.replica_id}")

    @property
    def node_id(self) -> str:
        """The replica's node."""
        return self._address.node_id

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of its node that the replica has."""
        return self._address.gpus

    @property
    def refusal(self) -> str:
        """Why the replica accepts no lane, "" when it does, or has not said it."""
        return "" if self.lane is not None and self.lane.welcome else self._refusal

    def ended_itself(self, calls: Sequence[LaneCall]) -> tuple[bool, bool]:
        """Whether the replica has ended itself, which is logged, and whether only this process had a lane to it then.

        `calls` were under way in it from here. Of a replica on another node that is not known.
        """
        if self._address.node_id != self._node_id:
            return False, False
        mark, only_lane = read_death_mark(self._address.unix_path)
        if mark:
            asked = ", ".join(f"'{name}'" for name in sorted({call.target.model_name for call in calls}))
            during = f" while requests for {asked} were under way" if asked else ""
            whose = (self._address.replica_id, self._deployment)
            trace = next((call.trace for call in calls if call.trace is not None), None)
            extra = about_trace("", None, trace)
            logger.error("replica %s of %s has ended itself%s: %s", *whose, during, mark, extra=extra)
        return bool(mark), only_lane

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
                self._refusal = ""
                self._failed(str(error) or type(error).__name__)
            else:
                self.lane = lane
                self._lost.clear()
                self._opened(self, lane)
                await self._lost.wait()
                self._refusal = lane.refusal
                if lane.welcome:
                    self._failing_since = None
                    delay_s = _RECONNECT_FIRST_S
                else:
                    self._failed(lane.refusal or "the replica closed the connection before it accepted the lane")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RECONNECT_LAST_S)

    async def _connect(self) -> LaneClient:
        """Connect by Unix socket on the replica's own node, else by TCP; a container may not see the socket.

        Raises:
            OSError: neither is possible, or not in time.
        """
        address = self._address
        if address.node_id != self._node_id:
            return await self._connect_tcp()
        lane = self._client(near=True)
        try:
            await self._loop.create_unix_connection(partial(_same, lane), address.unix_path)
        except OSError as error:
            if not address.tcp_port:
                raise
            lane = await self._connect_tcp()
            self._warn(f"its Unix socket cannot be opened, so its lane goes by TCP: {error}")
        else:
            lane.share()
        return lane

    def _client(self, *, near: bool) -> LaneClient:
        address = self._address
        return LaneClient(address.secret, self._owner, self._loop, near=near, replica_id=address.replica_id)

    async def _connect_tcp(self) -> LaneClient:
        address = self._address
        lane = self._client(near=False)
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await self._loop.create_connection(partial(_same, lane), address.tcp_host, address.tcp_port)
        return lane

    def _failed(self, reason: str) -> None:
        if self._failing_since is None:
            self._failing_since = self._loop.time()
        if self._loop.time() - self._failing_since >= WARN_AFTER_S:
            self._warn(f"no lane can be opened: {reason}")

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("replica %s: %s", self._address.replica_id, what)


def _same(lane: LaneClient) -> LaneClient:
    return lane
