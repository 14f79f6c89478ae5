"""Metrics that models count themselves, over all processes of a node."""

import gc
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.metrics.custom_metrics import CustomMetrics
from app.metrics.exposition import Exposition
from app.metrics.model_labels import model_labels
from app.metrics.scrape import Shown, render
from deployments.backends.python import metric, metric_rows
from deployments.backends.python.errors import TritonModelException
from deployments.backends.python.metric import COUNTER, GAUGE, HISTOGRAM, MetricFamily
from deployments.core.counts import Totals
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder

OTHER = """
import os, signal, sys
from pathlib import Path
from deployments.backends.python import metric
from deployments.backends.python.metric import COUNTER, GAUGE, HISTOGRAM, MetricFamily
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder

metric.export_to(lambda: NodeCounters(NodeFolder("node", Path(sys.argv[1]))))
seen = MetricFamily("seen_total", "What was seen", COUNTER).Metric({"model": "m"})
live = MetricFamily("live", "What lives", GAUGE).Metric()
sizes = MetricFamily("sizes", "How large", HISTOGRAM).Metric(buckets=[1, 10])
seen.increment(2.5)
live.increment(4)
sizes.observe(5)
print("counted", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_rows() -> Iterator[None]:
    metric.export_to(Totals)
    yield
    gc.collect()
    metric.export_to(Totals)


def lines(totals: Totals, taken: tuple[str, ...] = ()) -> list[str]:
    out = Exposition(lambda: None)
    out.collect(CustomMetrics(totals, taken))
    return [line for line in out.lines if not line.startswith("#")]


@pytest.fixture
def totals() -> Totals:
    rows = Totals()
    metric.export_to(lambda: rows)
    return rows


def test_families_are_written_as_prometheus_reads_them(totals: Totals) -> None:
    counter = MetricFamily(name="seen_total", description="What was\nseen", kind=COUNTER)
    counter.Metric(labels={"b": 'quo"te', "a": "back\\slash\n"}).increment(3)
    gauge = MetricFamily("heat", "", GAUGE).Metric()
    gauge.set(20.1)
    gauge.increment(-0.5)
    sizes = MetricFamily("sizes", "How large", HISTOGRAM).Metric({"m": "x"}, buckets=[1, 2.5])
    for value in (0.5, 1, 2, 9):
        sizes.observe(value)
    assert render(totals, model_labels({}), Shown(cpu=False, gpu=False), {}).decode().split("canary_state gauge\n")[
        1
    ] == (
        "# HELP heat \n# TYPE heat gauge\nheat 19.6\n"
        "# HELP seen_total What was\\nseen\n# TYPE seen_total counter\n"
        'seen_total{a="back\\\\slash\\n",b="quo\\"te"} 3\n'
        "# HELP sizes How large\n# TYPE sizes histogram\n"
        'sizes_bucket{m="x",le="1"} 2\nsizes_bucket{m="x",le="2.5"} 3\nsizes_bucket{m="x",le="+Inf"} 4\n'
        'sizes_sum{m="x"} 12.5\nsizes_count{m="x"} 4\n'
    )


def test_metrics_are_one_by_name_and_labels_and_counters_never_fall(totals: Totals) -> None:
    first = MetricFamily("seen", "", COUNTER)
    one, two = first.Metric({"a": "1"}), MetricFamily("seen", "", COUNTER).Metric({"a": "1"})
    one.increment(2)
    two.increment(0.5)
    assert one.value() == 2.5
    with pytest.raises(TritonModelException, match="already exists with another kind"):
        MetricFamily("seen", "", GAUGE)
    del first, one, two
    gc.collect()
    again = MetricFamily("seen", "", COUNTER).Metric({"a": "1"})
    again.increment(1)
    assert again.value() == 1
    assert lines(totals) == ['seen{a="1"} 3.5']


def test_a_gauge_is_shown_for_as_long_as_a_model_has_it(totals: Totals) -> None:
    family = MetricFamily("heat", "", GAUGE)
    family.Metric().set(3)
    gc.collect()
    assert lines(totals) == ["heat 3"]
    assert family.Metric().value() == 3
    gauge = family.Metric()
    del family
    gc.collect()
    assert lines(totals) == ["heat 3"]
    del gauge
    gc.collect()
    assert lines(totals) == []


def test_what_was_counted_adds_up_whatever_the_descriptions_say(totals: Totals) -> None:
    for description, value in (("What was seen", 1), ("What is seen", 2)):
        counter = MetricFamily("seen", description, COUNTER).Metric({"a": "1"})
        sizes = MetricFamily("sizes", description, HISTOGRAM).Metric(buckets=[1])
        counter.increment(value)
        sizes.observe(value)
        del counter, sizes
        gc.collect()
    assert lines(totals) == [
        'seen{a="1"} 3',
        *('sizes_bucket{le="1"} 1', 'sizes_bucket{le="+Inf"} 2', "sizes_sum 3", "sizes_count 2"),
    ]


@pytest.mark.parametrize(("before", "after"), [([1, 2], [5]), ([5], [1, 2])])
def test_a_histogram_has_the_buckets_that_its_model_gives_it_now(
    totals: Totals, before: list[float], after: list[float]
) -> None:
    MetricFamily("sizes", "", HISTOGRAM).Metric(buckets=before).observe(1)
    gc.collect()
    assert [f'sizes_bucket{{le="{bound}"}} 1' for bound in before] == lines(totals)[: len(before)]
    sizes = MetricFamily("sizes", "", HISTOGRAM).Metric(buckets=after)
    sizes.observe(3)
    assert lines(totals)[-3:] == ['sizes_bucket{le="+Inf"} 1', "sizes_sum 3", "sizes_count 1"]
    assert len(lines(totals)) == len(after) + 3


def test_processes_of_a_node_add_up_and_a_death_takes_its_gauges_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == "counted\n"
    counters = NodeCounters(NodeFolder("node", tmp_path))
    metric.export_to(lambda: counters)
    seen = MetricFamily("seen_total", "What was seen", COUNTER).Metric({"model": "m"})
    live = MetricFamily("live", "What lives", GAUGE).Metric()
    sizes = MetricFamily("sizes", "How large", HISTOGRAM).Metric(buckets=[1, 10])
    seen.increment(1)
    live.set(2)
    sizes.observe(0.5)
    histogram = ['sizes_bucket{le="1"} 1', 'sizes_bucket{le="10"} 2', 'sizes_bucket{le="+Inf"} 2']
    histogram += ["sizes_sum 5.5", "sizes_count 2"]
    assert lines(counters.totals()) == ["live 6", 'seen_total{model="m"} 3.5', *histogram]
    other.stdin.close()
    other.wait(10)
    other.stdout.close()
    assert lines(counters.totals()) == ["live 2", 'seen_total{model="m"} 3.5', *histogram]
    third = NodeCounters(NodeFolder("node", tmp_path))  # which folds what the dead have left
    assert lines(third.totals()) == ["live 2", 'seen_total{model="m"} 3.5', *histogram]
    elsewhere = Totals()
    elsewhere.add_list(third.totals().to_list())
    assert lines(elsewhere) == ["live 2", 'seen_total{model="m"} 3.5', *histogram]
    third.close()
    counters.close()


def test_names_of_the_servers_own_metrics_are_left_to_it(totals: Totals) -> None:
    kept = MetricFamily("nv_inference_count", "", COUNTER).Metric()
    kept.increment(5)
    assert render(totals, model_labels({}), Shown(cpu=False), {}).decode().count("nv_inference_count") == 2


def test_the_number_of_metrics_is_bounded(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_rows, "MAX_ROWS", 3)
    family = MetricFamily("seen", "", COUNTER)
    kept = [family.Metric({"user": str(number)}) for number in range(5)]
    for each in kept:
        each.increment(1)
    assert kept[4].value() == 1
    assert len(lines(totals)) == 3


def test_the_bucket_of_all_may_be_named(totals: Totals) -> None:
    metric = MetricFamily("times", "", HISTOGRAM).Metric(buckets=[0.5, math.inf])
    metric.observe(3.0)
    assert [line for line in lines(totals) if "bucket" in line] == [
        'times_bucket{le="0.5"} 0',
        'times_bucket{le="+Inf"} 1',
    ]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: MetricFamily("7up", "", COUNTER),
        lambda: MetricFamily("a b", "", COUNTER),
        lambda: MetricFamily("", "", COUNTER),
        lambda: MetricFamily("x" * 2000, "", COUNTER),
        lambda: MetricFamily("fine", "x" * 2000, COUNTER),
        lambda: MetricFamily("fine", "", COUNTER).Metric({"a-b": "1"}),
        lambda: MetricFamily("fine", "", COUNTER).Metric({"__name__": "1"}),
        lambda: MetricFamily("fine", "", COUNTER).Metric({"le": "1"}),
        lambda: MetricFamily("fine", "", COUNTER).Metric({"a": 1}),  # type: ignore[dict-item]
        lambda: MetricFamily("fine", "", COUNTER).Metric({f"l{n}": "" for n in range(33)}),
        lambda: MetricFamily("fine", "", COUNTER).Metric({f"l{n}": "x" * 1000 for n in range(5)}),
        lambda: MetricFamily("wide", "", HISTOGRAM).Metric(buckets=list(range(200))),
        lambda: MetricFamily("wide", "", HISTOGRAM).Metric(buckets=[1, math.nan]),
        lambda: MetricFamily("wide", "", HISTOGRAM).Metric(buckets=[-math.inf, 1]),
    ],
)
def test_what_prometheus_could_not_read_is_refused(misuse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TritonModelException):
        misuse()


def test_a_label_that_no_page_can_show_is_refused(totals: Totals) -> None:
    with pytest.raises(UnicodeEncodeError):
        MetricFamily("seen_total", "", COUNTER).Metric({"model": "\udcff"})
    assert lines(totals) == []
