"""The labels of each model version's metrics: the `metric_tags` of its configuration, model, namespace and version.

They are in the order of their names. Source: Triton's core, `metric_model_reporter.cc`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from app.metrics.config_facts import config_facts
from app.metrics.exposition import labels
from deployments.control.directory import ModelEntry
from repository_loader.namespaces import shared_name

_NO_ENTRY: Final = ModelEntry()


def plain_name(known: str, entry: ModelEntry) -> str:
    """Return the name that a model has in its repository; where several share it, their namespaces differ."""
    return (entry.namespace and shared_name(known)) or known


def model_labels(models: Mapping[str, ModelEntry]) -> Callable[[str, int], str]:
    """Return what makes the labels of a version, for the models of a directory."""
    made: dict[tuple[str, int], str] = {}

    def labels_of(name: str, version: int) -> str:
        text = made.get((name, version))
        if text is None:
            entry = models.get(name)
            if entry is None:
                entry = _NO_ENTRY
            namespace = (("namespace", entry.namespace),) if entry.namespace else ()
            own = ("model", plain_name(name, entry)), *namespace, ("version", str(version))
            text = made[name, version] = labels((*config_facts(name, entry.config).tags, *own))
        return text

    return labels_of
