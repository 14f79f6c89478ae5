"""Reads Prometheus text as Prometheus does."""

from collections.abc import Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


def families(text: str) -> dict[str, Metric]:
    """Return the families by name; the parser calls a sample of a counter `_total`."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text: str, **labels: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples that have these labels: by name and the other labels."""
    return {
        (each.name.removesuffix("_total"), _rest(each.labels, labels)): each.value
        for family in families(text).values()
        for each in family.samples
        if labels.items() <= each.labels.items()
    }


def _rest(found: Mapping[str, str], labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in found.items() if key not in labels))
