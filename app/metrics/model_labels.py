"""The labels of each model version's metrics: model and version, and the `metric_tags` of its configuration."""

from collections.abc import Callable, Mapping

from app.metrics.config_facts import config_facts
from app.metrics.exposition import labels
from deployments.control.directory import ModelEntry


def model_labels(models: Mapping[str, ModelEntry]) -> Callable[[str, int], str]:
    """Return what makes the labels of a version, for the models of a directory."""
    made: dict[tuple[str, int], str] = {}

    def labels_of(name: str, version: int) -> str:
        text = made.get((name, version))
        if text is None:
            entry = models.get(name)
            tags = config_facts(name, entry.config).tags if entry is not None else ()
            text = made[name, version] = labels((("model", name), ("version", str(version)), *tags))
        return text

    return labels_of
