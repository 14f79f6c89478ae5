"""Metrics that models count themselves."""

from app.metrics.custom_metrics import CustomMetrics
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from tests.deployments.replica.hosted_models import Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import models_here as models_here
from tests.deployments.replica.hosted_models import unfrozen as unfrozen


@on_a_loop
async def test_metrics_of_models_are_among_the_counters_of_the_node(models: Models) -> None:
    models.add(
        "counting",
        """
        class TritonPythonModel:
            def initialize(self, args):
                family = pb_utils.MetricFamily("seen_total", "What was seen", pb_utils.MetricFamily.COUNTER)
                self.seen = family.Metric(labels={"model": args["model_name"]})
            def execute(self, requests):
                self.seen.increment(len(requests))
                return [answer(x_of(r).as_numpy()) for r in requests]
        """,
    )
    counters = NodeCounters(NodeFolder("node", models.root.parent))
    for total in (2, 4):  # a process that has ended has left its counts
        async with models.hosted(counters=counters) as call:
            await call("counting", 1)
            await call("counting", 1)
            [family] = CustomMetrics(counters.totals()).collect()
            assert [(each.labels, each.value) for each in family.samples] == [({"model": "counting"}, total)]
    counters.close()
