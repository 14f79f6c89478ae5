"""Asks Ray's autoscaler, where there is one, for the nodes that waiting models need."""

import logging
from dataclasses import replace

from ray.autoscaler.sdk import request_resources

from deployments.control.desired_state import DesiredState
from deployments.control.postponed import reasons_of
from deployments.control.state_store import Table
from repository_loader.demand import Bundle, demand

logger = logging.getLogger(__name__)


class GrowthRequest:
    """What was asked for last: Ray keeps it until something else is asked, and who never asks changes nothing.

    A mark in the table says that the owner, a Serve application, has asked for something; every method blocks.
    """

    def __init__(self, table: Table, owner: str) -> None:
        self._table = table
        self._key = f"growth-{owner}"
        self._asked: list[Bundle] | None = None

    def ask(self, desired: DesiredState) -> None:
        """Ask for what waits, beside what runs; does nothing when that was asked already."""
        self._ask(wanted(desired))

    def end(self) -> None:
        """Ask for nothing any more."""
        self._ask([])

    def _ask(self, bundles: list[Bundle]) -> None:
        if self._asked is None and not self._table.get(self._key):
            self._asked = []
        if bundles == self._asked:
            return
        logger.info("asking the autoscaler for %d bundles, for the models that wait", len(bundles))
        if bundles:
            self._table.put(self._key, b"asked")
        request_resources(bundles=bundles)
        if not bundles:
            self._table.forget(self._key)
        self._asked = bundles


def wanted(desired: DesiredState) -> list[Bundle]:
    """Return what has to fit into the cluster at once for all that runs, and for what waits or is postponed.

    A model that cannot be read is one for want of a GPU only where there is none.
    """
    waits = [group for group in desired.postponed if group.can_be_read or not desired.facts.num_gpus]
    models = {name: model for group in waits for name, model in group.models.items()}
    unplaced = {name: reason for name, reason in reasons_of(waits).items() if models[name].failure is None}
    snapshot = replace(desired.snapshot, models={**desired.snapshot.models, **models})
    return demand(snapshot, replace(desired.plan, unplaced={**desired.plan.unplaced, **unplaced}), desired.facts)
