"""What was counted on all nodes: one ingress of each other node is asked for its node's."""

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Collection, Container, Iterable, Mapping, Set
from typing import Any, Final

import ray

from app.ingress.all_ingresses import all_ingresses, ask_each
from app.service.statistics import NodeTotals
from deployments.core.counts import BATCH_REASON, CLIENT, CPU, GPU, STATE, STATISTICS, IsGone, Totals
from deployments.core.pauses import Pauses
from deployments.core.row_forms import understood, written
from deployments.replica.node_counters import NodeCounters

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 2.0
_TOLD: Final = STATISTICS | {CLIENT, STATE, BATCH_REASON, CPU, GPU}
"""What a node tells the others: statistics, and what the console shows beside them."""
_OF_MACHINE: Final = frozenset({CPU, GPU})
"""What there is nothing of once a node is dead; each node has GPUs of its own."""

OfDead = tuple[list[str], list[Any]]
"""The ids of dead nodes, and the rows of what they had counted."""


class ClusterCounters:
    """The counters of this node, and those of the others through their ingresses.

    A node that does not answer in time stands with what it said last; those that are dead stand together with what they
    had counted, under a name that says which they are. Whichever ingress has heard most of these tells the others, when
    they start and when one more node is dead.
    """

    def __init__(self, node_id: str, counters: NodeCounters, timeout_s: float = _TIMEOUT_S) -> None:
        self._node_id = node_id
        self._timeout_s = timeout_s
        self._counters = counters
        self._elsewhere: dict[str, list[Any]] = {}
        self._alive_before: Set[str] = frozenset()
        """The nodes that were alive when statistics were asked for last."""
        self._dead: set[str] = set()
        self._of_dead = Totals()
        self._name_of_dead = ""
        self._reading = threading.Lock()
        self._alive: Mapping[str, str] = {}
        self._asked: asyncio.Task[Mapping[str, str]] | None = None

    async def connect(self) -> None:
        """Connect to Ray's tables: Ray aborts a process that may open no more files when it first does so."""
        self._alive = await asyncio.to_thread(_addresses)

    async def of_node(self) -> Totals:
        """Return what was counted on this node."""
        return await asyncio.to_thread(self._counters.totals)

    async def of_cluster(self) -> Totals:
        """Return what was counted on all nodes."""
        own, *others = await self.of_nodes()
        for other in others:
            own.totals.add_totals(other.totals)
        return own.totals

    async def of_nodes(self) -> list[NodeTotals]:
        """Return what was counted on each node, on this one first, and last on all that are dead."""
        alive = await self._nodes_alive()
        if len(alive) > 1:
            await self._ask_others()
        if not self._alive_before <= alive.keys():
            await self.inherit()
        self._alive_before = alive.keys()
        return await asyncio.to_thread(self._read, alive)

    async def _nodes_alive(self) -> Mapping[str, str]:
        """Return the address of each node that is alive; those that Ray named last where it does not answer in time.

        One thread waits for Ray, however many ask: each would keep one from what else runs in threads.
        """
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(asyncio.to_thread(_addresses))
        asked = self._asked
        answered, _ = await asyncio.wait([asked], timeout=self._timeout_s)
        if not answered:
            logger.warning("the nodes are those that Ray named last: no answer in %g s", self._timeout_s)
            return self._alive
        self._alive = asked.result()
        return self._alive

    def _read(self, alive: Mapping[str, str]) -> list[NodeTotals]:
        began_s = time.thread_time()
        totals = self._counters.totals()
        nodes = [NodeTotals(self._node_id, alive.get(self._node_id, ""), totals, time.thread_time() - began_s)]
        for node_id, rows in list(self._elsewhere.items()):  # the loop adds to it
            if node_id not in alive:
                self._bury(node_id)
                continue
            began_s, totals = time.thread_time(), Totals()
            totals.add_list(understood(rows))
            nodes.append(NodeTotals(node_id, alive[node_id], totals, time.thread_time() - began_s))
        if self._dead:
            nodes.append(self._read_dead())
        return nodes

    async def inherit(self) -> None:
        """Take what was counted on dead nodes, if there are any, from the ingress that has heard most of them."""
        if all(node["Alive"] for node in await asyncio.to_thread(ray.nodes)):
            return
        try:
            answers = await ask_each(all_ingresses(), "counts_of_dead", timeout_s=self._timeout_s)
        except TimeoutError:
            return
        if told := [answer for answer in answers if isinstance(answer, tuple)]:
            await asyncio.to_thread(self._take_dead, *max(told, key=_extent))

    async def of_dead(self) -> OfDead:
        """Return the ids of all dead nodes that were heard of, and the rows of what they had counted."""
        alive = await self._nodes_alive()
        return await asyncio.to_thread(self._told_of_dead, alive)

    def _told_of_dead(self, alive: Container[str]) -> OfDead:
        for node_id in [each for each in list(self._elsewhere) if each not in alive]:
            self._bury(node_id)
        with self._reading:
            return sorted(self._dead), list(written(self._of_dead.to_list()))

    def _take_dead(self, node_ids: Collection[str], rows: Iterable[list[Any]]) -> None:
        """Have these in place of what is known, unless they lack a node."""
        totals = Totals()
        totals.add_list(understood(rows), present=False)
        with self._reading:
            if self._dead.issubset(node_ids):
                self._of_dead = totals
                self._have_died(node_ids)

    def _have_died(self, node_ids: Iterable[str]) -> None:
        self._dead.update(node_ids)
        self._name_of_dead = hashlib.sha256("".join(sorted(self._dead)).encode()).hexdigest()

    def _bury(self, node_id: str) -> None:
        """Add a dead node's rows to those of the others: of nodes that come and go all the time, none may be kept."""
        with self._reading:
            rows = self._elsewhere.pop(node_id, ())
            if node_id not in self._dead:  # it may have answered somebody who asked before it died
                counted = (row for row in understood(rows) if row[0] not in _OF_MACHINE)
                self._of_dead.add_list(counted, present=False)
                self._have_died([node_id])

    def give_back(self, is_gone: IsGone) -> None:
        """Forget what was counted of versions that are gone on this node, and on dead ones; blocks.

        Raises:
            OSError: the files of this node cannot be read, or not be written.
        """
        with self._reading:
            self._of_dead.remove(is_gone, Pauses())
        self._counters.give_back(is_gone, also_of_dead=True)

    def _read_dead(self) -> NodeTotals:
        began_s, totals = time.thread_time(), Totals()
        with self._reading:
            totals.add_totals(self._of_dead)
            name = self._name_of_dead
        return NodeTotals(name, "", totals, time.thread_time() - began_s)

    async def _ask_others(self) -> None:
        try:
            answers = await ask_each(all_ingresses(), "counts_of_node", self._node_id, timeout_s=self._timeout_s)
        except TimeoutError as error:
            answers = [error]
        if any(isinstance(answer, TimeoutError) for answer in answers):
            logger.warning(
                "the statistics of some nodes are as they were told last: no answer in %g s", self._timeout_s
            )
        self._elsewhere.update(answer for answer in answers if isinstance(answer, tuple))

    async def answer(self, asking_node_id: str) -> tuple[str, list[Any]] | None:
        """Return this node's id and rows for another node; None when another ingress speaks for this one."""
        if asking_node_id == self._node_id or not self._counters.speaks_for_node():
            return None
        return self._node_id, list(written((await self.of_node()).to_list(_TOLD)))


def _extent(told: OfDead) -> tuple[int, int]:
    """Return of how many nodes an ingress tells, and how much: counts rise, so the most is what was heard last."""
    node_ids, rows = told
    return len(node_ids), sum(sum(row[-1]) for row in rows)


def _addresses() -> dict[str, str]:
    """Return the address of each node that is alive, by its id."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
