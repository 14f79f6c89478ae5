"""Every lane of this process: the replicas that Serve reports, and a target for each model version that they serve."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeters
from deployments.lane.address import ReplicaAddress
from deployments.lane.client import LaneCall, LaneClient, TableRow
from deployments.lane.link import Link
from deployments.lane.remote_regions import ClientRegions
from deployments.lane.retry import Death, Retry
from deployments.lane.routes import Routes
from deployments.lane.target import LaneTarget, TargetContext

AWAY_S: Final = 2.0
"""Longer than Serve takes to tell a replica of a change, and to see that it has taken it."""
GONE_S: Final = 60.0
"""Longer than Serve lets a replica live that it has told to end, and that says nothing of the time it has."""
_LOOK_S: Final = 0.5


class Fleet:
    """Keeps a lane open to every replica, and passes on what happens to each.

    All methods run on the loop's thread. A replica may be off Serve's list for `away_s`, and longer while there is no
    other; `gone_s` later, and what it says that it may take, it has nothing under way any more. `changed` is called
    after the set of ready models may have changed. `meters` count the requests of a process that takes those of
    clients.
    """

    def __init__(
        self,
        node_id: str,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
        refusals: Refusals,
        max_inflight: int = 4096,
        regions: ClientRegions | None = None,
        away_s: float = AWAY_S,
        meters: RequestMeters | None = None,
        gone_s: float = GONE_S,
    ) -> None:
        self._node_id = node_id
        self._loop = loop
        self._away_s = away_s
        self._gone_s = gone_s
        self._context = TargetContext(max_inflight, refusals, regions, meters)
        self._changed = changed
        self._routes = Routes(self._context, self._routes_changed)
        self._retry = Retry(self._routes, refusals)
        self._groups: dict[str, dict[str, Link]] = {}
        self._open: dict[LaneClient, Link] = {}
        self._away: dict[str, asyncio.TimerHandle] = {}
        self._overdue: dict[str, str] = {}

    def set_replicas(self, group: str, addresses: Mapping[str, ReplicaAddress]) -> None:
        """Take the list of a deployment's running replicas from Serve.

        A replica that Serve is changing in place leaves the list for some moments, or longer where Serve is busy. One
        that stays away gets no new requests as soon as there is another; its lane stays until what is under way is
        answered.
        """
        links = self._groups.setdefault(group, {})
        for replica_id in links.keys() - addresses.keys() - self._overdue.keys() - self._away.keys():
            self._away[replica_id] = self._loop.call_later(self._away_s, self._stays_away, group, replica_id)
            self._set_leaving(links[replica_id], leaving=True)
        for replica_id in links.keys() & addresses.keys() & (self._away.keys() | self._overdue.keys()):
            self._forget_absence(replica_id)
            self._set_leaving(links[replica_id], leaving=False)
        for replica_id in addresses.keys() - links.keys():
            address = addresses[replica_id]
            links[replica_id] = Link(address, group, self._node_id, self, self._lane_opened, self._loop)

    def forget(self, group: str) -> None:
        """Send nothing more to a deployment's replicas."""
        for replica_id in tuple(self._groups.get(group, ())):
            self._forget_absence(replica_id)
            self._dismiss(self._groups[group].pop(replica_id))
        self._groups.pop(group, None)

    def _forget_absence(self, replica_id: str) -> None:
        self._overdue.pop(replica_id, None)
        timer = self._away.pop(replica_id, None)
        if timer is not None:
            timer.cancel()

    def _stays_away(self, group: str, replica_id: str) -> None:
        self._away.pop(replica_id, None)
        self._overdue[replica_id] = group
        self._dismiss_overdue()

    def _dismiss_overdue(self) -> None:
        """Dismiss the replicas that have stayed away, where another one of the group can be asked."""
        for replica_id, group in tuple(self._overdue.items()):
            links = self._groups[group]
            others = (link for other, link in links.items() if other not in self._overdue and other not in self._away)
            if links[replica_id].lane is None or any(link.lane is not None and link.lane.welcome for link in others):
                del self._overdue[replica_id]
                self._dismiss(links.pop(replica_id))

    def _set_leaving(self, link: Link, *, leaving: bool) -> None:
        """Note whether a replica that ends now was meant to."""
        if link.lane is not None:
            link.lane.leaving = leaving

    def _dismiss(self, link: Link) -> None:
        link.dismiss()
        if link.lane is not None:
            self._routes.withdraw(link.lane)
            link.lane.leaving = True
            self._close_answered(link.lane, self._loop.time())

    def _close_answered(self, lane: LaneClient, dismissed_s: float) -> None:
        """Close a lane as soon as what is under way on it is answered.

        What stands still on a node that Ray takes for dead is ended by nobody, and answers nothing; its kernel goes on
        acknowledging, as of a container that is paused.
        """
        if not lane.calls:
            lane.close()
        elif self._loop.time() < dismissed_s + self._gone_s + lane.leaves_within_s or self._is_listed(lane.replica_id):
            self._loop.call_later(_LOOK_S, self._close_answered, lane, dismissed_s)
        else:
            lane.peer_silent()

    def _is_listed(self, replica_id: str) -> bool:
        return any(replica_id in links for links in self._groups.values())

    def _lane_opened(self, link: Link, lane: LaneClient) -> None:
        self._open[lane] = link

    def lane_table(self, lane: LaneClient, rows: list[TableRow]) -> None:
        """Take the list of models that a replica serves."""
        self._routes.take_table(lane, rows)
        self._dismiss_overdue()

    def _routes_changed(self) -> None:
        self._retry.replicas_changed()
        self._changed()

    def lane_goes_away(self, lane: LaneClient) -> None:
        """Stop sending to a replica that drains."""
        self._routes.withdraw(lane)

    def lane_shared_again(self, call: LaneCall) -> None:
        """Let those have a replica to themselves that come after a call."""
        self._retry.clear(call)

    def lane_lost(self, lane: LaneClient, calls: list[LaneCall]) -> None:
        """Send what the replica did not answer to another one."""
        self._routes.withdraw(lane, lost=True)
        link = self._open.pop(lane, None)
        death = Death(unmeant=not lane.leaving, alone=lane.alone)
        if link is not None:
            if death.unmeant:
                by_itself, sole_lane = link.ended_itself(calls)
                death = replace(death, by_itself=by_itself, sole_lane=sole_lane)
            link.lose()
            self._dismiss_overdue()
        self._retry.take(calls, death)

    def target(self, name: str, version: int = -1, interface: str = "") -> LaneTarget | None:
        """Return the target of a model version, None when no live replica serves it; see `Routes.find`."""
        return self._routes.find(name, version, interface)

    def awaited(self, name: str, version: int = -1) -> LaneTarget | None:
        """Return the target of a version (-1: any) whose last replica died, while requests wait for another one."""
        return self._routes.awaited(name, version)

    def awaited_versions(self, name: str) -> list[int]:
        """Return the versions of a model whose last replica died, while requests wait for another one."""
        return self._routes.awaited_versions(name)

    def expect(self, taken: Collection[tuple[str, int]]) -> None:
        """Take which versions take requests, and so shall have replicas; requests wait for no other."""
        self._routes.expect(taken)
        self._retry.expect(taken)

    def versions(self, name: str) -> Collection[int]:
        """Return the versions of a model that live replicas serve."""
        return self._routes.versions(name)

    def set_sleepers(self, sleepers: Mapping[tuple[str, int], float], wake: Callable[[], None]) -> None:
        """Take which versions may have no replica, how long a request waits for one, and what is called when one does.

        `expect` comes after it: what waits for a version that was dropped is refused there.
        """
        self._routes.set_sleepers(sleepers, wake)

    def ongoing(self, name: str, version: int) -> int:
        """Return how many requests for a version are under way from here, or wait for a replica."""
        target = self._routes.find(name, version) or self._routes.awaited(name, version)
        return (0 if target is None else target.ongoing) + self._retry.waiting_count(name, version)

    def sent(self, name: str, version: int) -> int:
        """Return how many requests for a version have begun here since it could first be reached."""
        target = self._routes.find(name, version) or self._routes.awaited(name, version)
        return 0 if target is None else target.sent

    def says_ready(self, name: str, version: int) -> bool:
        """Whether a version says of itself that it is ready, as far as other processes serve it."""
        return self._routes.says_ready(name, version)

    def fault(self, name: str, version: int) -> str:
        """Return why a version serves no more, "" when no replica says so."""
        return self._routes.fault(name, version)

    def refusal(self, group: str) -> str:
        """Return why replicas of a deployment accept no lane, "" when none says so."""
        return next((link.refusal for link in self._groups.get(group, {}).values() if link.refusal), "")

    def replicas(self) -> list[tuple[str, str, str, tuple[str, ...]]]:
        """Return deployment, id, node and GPUs of each replica that an open lane leads to."""
        return [
            (group, replica_id, link.node_id, link.gpus)
            for group, links in self._groups.items()
            for replica_id, link in links.items()
            if link.lane is not None
        ]

    @property
    def lane_count(self) -> int:
        """How many lanes are open."""
        return len(self._open)

    async def close(self) -> None:
        """Close every lane."""
        links = {link for group in self._groups.values() for link in group.values()} | set(self._open.values())
        self._groups.clear()
        self._overdue.clear()
        for timer in self._away.values():
            timer.cancel()
        for link in links:
            await link.close()
