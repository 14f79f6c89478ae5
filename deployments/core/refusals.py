"""Requests that failed before a replica had them, or with one that died: no model's own statistics count these."""

from typing import cast

from deployments.core.counts import MODEL, RETRY, BucketCount, Label, ModelCounts, Rows
from protocol.errors import QueueFull, ServingError


class Refusals:
    """Counts them in `rows` as failures of the model version, as REJECTED when one was over a limit, else OTHER."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def count(self, name: str, version: int, error: ServingError) -> None:
        """Count one; the version must be one that the repository has, since clients may name any number of others."""
        counts = cast(ModelCounts, self.rows.row(Label(MODEL, name, version)))
        if isinstance(error, QueueFull):
            counts.rejected_count += 1
        else:
            counts.other_count += 1

    def count_retry(self, name: str, version: int) -> None:
        """Count a request that another replica is asked again for."""
        cast(BucketCount, self.rows.row(Label(RETRY, name, version))).count += 1
