"""Asks Ray's autoscaler, where there is one, for the nodes that waiting models need."""

import logging

from ray.autoscaler.sdk import request_resources

from deployments.control.state_store import Table
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.demand import Bundle, demand
from repository_loader.deployment_plan import Plan
from repository_loader.snapshot import Snapshot

logger = logging.getLogger(__name__)


class GrowthRequest:
    """What was asked for last: Ray keeps it until something else is asked, and who never asks changes nothing.

    A mark in the table says that the owner, a Serve application, has asked for something; every method blocks.
    """

    def __init__(self, table: Table, owner: str) -> None:
        self._table = table
        self._key = f"growth-{owner}"
        self._asked: list[Bundle] | None = None

    def ask(self, snapshot: Snapshot, plan: Plan, facts: ClusterFacts) -> None:
        """Ask for what waits, beside what runs; does nothing when that was asked already."""
        self._ask(demand(snapshot, plan, facts))

    def end(self) -> None:
        """Ask for nothing any more."""
        self._ask([])

    def _ask(self, wanted: list[Bundle]) -> None:
        if self._asked is None and not self._table.get(self._key):
            self._asked = []
        if wanted == self._asked:
            return
        logger.info("asking the autoscaler for %d bundles, for the models that wait", len(wanted))
        if wanted:
            self._table.put(self._key, b"asked")
        request_resources(bundles=wanted)
        if not wanted:
            self._table.forget(self._key)
        self._asked = wanted
