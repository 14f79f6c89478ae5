"""Every lane of this process: which replicas there are, which models each serves, and where a request should go."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from deployments.lane.client import MAX_INFLIGHT_BYTES, LaneCall, LaneClient
from deployments.lane.frames import Buffer
from deployments.lane.remote_regions import inline, names_region
from deployments.lane.sink import Sink, Target
from deployments.lane.wire import HTTP
from protocol.errors import ServingError, Unavailable
from protocol.shared_memory import SharedMemory

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
_RECONNECT_FIRST_S: Final = 0.05
_RECONNECT_LAST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where a replica's lane listens: a Unix socket on its own node, and, when it accepts other nodes, TCP."""

    replica_id: str
    node_id: str
    unix_path: str
    tcp_host: str
    tcp_port: int
    secret: str


class LaneTarget:
    """One model version served by other processes: the lanes that lead to it, and the index it has on each."""

    def __init__(self, fleet: "Fleet", model_name: str, version: int) -> None:
        self._fleet = fleet
        self.model_name = model_name
        self.version = version
        self.lanes: dict[LaneClient, int] = {}

    @property
    def ready(self) -> bool:
        """Whether a live lane leads to the model."""
        return bool(self.lanes)

    def submit(self, parts: Sequence[Buffer], json_length: int | None, sink: Sink, wire: int = HTTP) -> LaneCall | None:
        """Send a request to the replica with the fewest under way."""
        near = False
        if self._fleet.regions is not None and names_region(parts, json_length, wire):
            near = bool(self._fleet.near(self.lanes))
            if not near:
                try:
                    parts, json_length, sink = inline(parts, json_length, wire, self._fleet.regions, sink)
                except ServingError as refused:
                    sink.on_error(refused)
                    return None
        size = 0
        for part in parts:
            size += len(part)
        call = LaneCall(self, parts, json_length, sink, size, wire)
        call.near = near
        error = self.send(call)
        if error is not None:
            sink.on_error(error)
        return call

    def send(self, call: LaneCall) -> ServingError | None:
        """Put a call on the best lane; returns why that is not possible."""
        lanes = self._fleet.near(self.lanes) if call.near else self.lanes
        if len(lanes) == 1:
            (lane,) = lanes
        elif lanes:
            lane = min(lanes, key=_load)
        else:
            return Unavailable(
                f"Request for unknown model: '{self.model_name}' version {self.version} is not at ready state"
            )
        if len(lane.calls) >= self._fleet.max_inflight or lane.inflight_bytes + call.size > MAX_INFLIGHT_BYTES:
            return Unavailable("Exceeds maximum queue size")
        lane.call(lanes[lane], call)
        return None

    def cancel(self, token: LaneCall | None) -> None:
        """Give a request up."""
        if token is not None and token.lane is not None:
            token.lane.cancel(token)


def _load(lane: LaneClient) -> int:
    return len(lane.calls)


def _same(lane: LaneClient) -> LaneClient:
    return lane


def _resolve(future: "asyncio.Future[Any]", answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


class _Link:
    """One replica and the task that keeps a lane to it open."""

    def __init__(self, address: ReplicaAddress) -> None:
        self.address = address
        self.lane: LaneClient | None = None
        self.lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.statistics: Any = None


class Fleet:
    """Keeps a lane open to every replica that Serve reports, and a target for every model that they serve.

    All methods run on the loop's thread. `changed` is called after the set of ready models may have changed.
    """

    def __init__(
        self, node_id: str, loop: asyncio.AbstractEventLoop, changed: Callable[[], None], max_inflight: int = 4096
    ) -> None:
        self._node_id = node_id
        self._loop = loop
        self._changed = changed
        self.max_inflight = max_inflight
        self._groups: dict[str, dict[str, _Link]] = {}
        self._regions_table = b""
        self.regions: SharedMemory | None = None
        self._links: dict[LaneClient, _Link] = {}
        self.targets: dict[str, dict[int, LaneTarget]] = {}

    def set_replicas(self, group: str, addresses: Mapping[str, ReplicaAddress]) -> None:
        """Take the list of a deployment's running replicas from Serve.

        A replica that has left the list gets no new requests; its lane stays until what is under way is answered.
        """
        links = self._groups.setdefault(group, {})
        for replica_id in links.keys() - addresses.keys():
            self._dismiss(links.pop(replica_id))
        for replica_id in addresses.keys() - links.keys():
            link = links[replica_id] = _Link(addresses[replica_id])
            link.task = self._loop.create_task(self._keep_open(link), name=f"lane to {replica_id}")
        if not addresses:
            self._groups.pop(group, None)

    async def _keep_open(self, link: _Link) -> None:
        delay_s = _RECONNECT_FIRST_S
        address = link.address
        while True:
            lane = LaneClient(address.secret, self, self._loop)
            try:
                if address.node_id == self._node_id:
                    await self._loop.create_unix_connection(partial(_same, lane), address.unix_path)
                    lane.share()
                else:
                    await self._loop.create_connection(partial(_same, lane), address.tcp_host, address.tcp_port)
            except OSError as error:
                logger.debug("no lane to %s yet: %s", address.replica_id, error)
            else:
                link.lane = lane
                self._links[lane] = link
                if self._regions_table and address.node_id == self._node_id:
                    lane.send_regions(self._regions_table)
                link.lost.clear()
                delay_s = _RECONNECT_FIRST_S
                await link.lost.wait()
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RECONNECT_LAST_S)

    def _dismiss(self, link: _Link) -> None:
        if link.task is not None:
            link.task.cancel()
        if link.lane is not None:
            self._withdraw(link.lane)
            if not link.lane.calls:
                link.lane.close()

    def _withdraw(self, lane: LaneClient) -> None:
        changed = False
        for name, versions in tuple(self.targets.items()):
            for version, target in tuple(versions.items()):
                if target.lanes.pop(lane, None) is not None and not target.lanes:
                    del versions[version]
                    changed = True
            if not versions:
                del self.targets[name]
        if changed:
            self._changed()

    def near(self, lanes: dict[LaneClient, int]) -> dict[LaneClient, int]:
        """Return those lanes that lead to replicas on this node."""
        return {lane: index for lane, index in lanes.items() if self._links[lane].address.node_id == self._node_id}

    def set_regions(self, regions: SharedMemory, rows: list[list[Any]]) -> None:
        """Take the shared-memory regions of this node, and tell its replicas; those of other nodes cannot map them."""
        self.regions = regions if rows else None
        self._regions_table = orjson.dumps(rows)
        for lane, link in self._links.items():
            if link.address.node_id == self._node_id:
                lane.send_regions(self._regions_table)

    def lane_table(self, lane: LaneClient, rows: list[tuple[int, str, int]]) -> None:
        """Take the list of models that a replica serves."""
        wanted = {(name, version): index for index, name, version in rows}
        for name, versions in tuple(self.targets.items()):
            for version, target in tuple(versions.items()):
                if lane in target.lanes and (name, version) not in wanted:
                    del target.lanes[lane]
                    if not target.lanes:
                        del versions[version]
        for (name, version), index in wanted.items():
            versions = self.targets.setdefault(name, {})
            if version not in versions:
                versions[version] = LaneTarget(self, name, version)
            versions[version].lanes[lane] = index
        self._changed()

    def lane_goes_away(self, lane: LaneClient) -> None:
        """Stop sending to a replica that drains."""
        self._withdraw(lane)

    def lane_lost(self, lane: LaneClient, calls: list[LaneCall]) -> None:
        """Send what a dead replica did not answer to another one."""
        self._withdraw(lane)
        link = self._links.pop(lane, None)
        if link is not None:
            link.lane = None
            link.lost.set()
        for call in calls:
            self._retry(call)

    def _retry(self, call: LaneCall) -> None:
        target: LaneTarget = call.target
        error: ServingError | None
        if call.delivered or call.attempts >= _MAX_ATTEMPTS:
            error = Unavailable(f"the replica of model '{target.model_name}' that held the request died")
        else:
            current = self.targets.get(target.model_name, {}).get(target.version)
            error = (current or target).send(call)
        if error is not None:
            call.sink.on_error(error)

    def target(self, name: str, version: int = -1) -> Target | None:
        """Return the target of a model version (-1: the highest ready one), None when no live replica serves it."""
        versions = self.targets.get(name)
        if not versions:
            return None
        return versions.get(version if version != -1 else max(versions))

    async def snapshots(self, timeout_s: float = 1.0) -> list[Any]:
        """Ask every replica for its statistics; one that does not answer in time stands with what it said last."""
        futures: dict[asyncio.Future[Any], _Link] = {}
        for lane, link in tuple(self._links.items()):
            future: asyncio.Future[Any] = self._loop.create_future()
            lane.control(partial(_resolve, future))
            futures[future] = link
        if not futures:
            return []
        done, pending = await asyncio.wait(futures, timeout=timeout_s)
        for future in pending:
            future.cancel()
        for future in done:
            if future.result() is not None:
                futures[future].statistics = future.result()
        return [link.statistics for link in futures.values() if link.statistics is not None]

    async def close(self) -> None:
        """Close every lane."""
        links = [link for group in self._groups.values() for link in group.values()]
        self._groups.clear()
        for link in links:
            if link.task is not None:
                link.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await link.task
        for lane in tuple(self._links):
            lane.close()
