from pathlib import Path

import pytest

from benchmarks.metrics import PAIRS
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder


@pytest.mark.parametrize("what", PAIRS)
def test_what_is_measured_runs_with_and_without_its_counts(what: str, tmp_path: Path) -> None:
    rows = NodeCounters(NodeFolder("node", tmp_path))
    for counted in (False, True):
        PAIRS[what](rows, counted=counted)()
