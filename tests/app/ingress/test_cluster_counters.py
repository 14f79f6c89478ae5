"""What was counted on all nodes, as one ingress adds it up."""

from typing import Any

from app.ingress.cluster_counters import ClusterCounters
from deployments.core.counts import Totals


class Counters:
    """Those of a node on which nothing was counted."""

    def totals(self) -> Totals:
        return Totals()


def test_a_node_that_answers_while_the_others_are_added_up_harms_nobody() -> None:
    counters: Any = Counters()
    cluster = ClusterCounters("here", counters)
    cluster._elsewhere = {"one": [], "two": []}

    class Alive(dict[str, str]):
        """The nodes that are alive; one more answers, on another thread, whenever somebody looks."""

        def __contains__(self, node_id: object) -> bool:
            cluster._elsewhere[f"after {node_id}"] = []
            return super().__contains__(node_id)

    read = cluster._read(Alive(here="", one="", two=""))
    assert [node.node_id for node in read] == ["here", "one", "two"]
