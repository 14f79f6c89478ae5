"""Asks Ray's autoscaler, where there is one, for the nodes that waiting models need."""

import logging

from ray.autoscaler.sdk import request_resources

from repository_loader.cluster_facts import ClusterFacts
from repository_loader.demand import Bundle, demand
from repository_loader.deployment_plan import Plan
from repository_loader.snapshot import Snapshot

logger = logging.getLogger(__name__)


class GrowthRequest:
    """What was asked for last: Ray keeps it until something else is asked, and who never asks changes nothing."""

    def __init__(self) -> None:
        self._asked: list[Bundle] = []

    def ask(self, snapshot: Snapshot, plan: Plan, facts: ClusterFacts) -> None:
        """Ask for what waits, beside what runs; blocks, and does nothing when that was asked already."""
        wanted = demand(snapshot, plan, facts)
        if wanted != self._asked:
            logger.info("asking the autoscaler for %d bundles, for the models that wait", len(wanted))
            request_resources(bundles=wanted)
            self._asked = wanted
