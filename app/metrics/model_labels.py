"""The labels of each model version's metrics: model and version, and the `metric_tags` of its configuration."""

from collections.abc import Callable, Mapping
from typing import Final

import orjson

from app.metrics.exposition import label_names, labels
from deployments.control.directory import ModelEntry

_NO_TAGS: Final[tuple[tuple[str, str], ...]] = ()


class ModelLabels:
    """What `metric_tags` say of each model; a configuration is read when it is new."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}

    def of(self, models: Mapping[str, ModelEntry]) -> Callable[[str, int], str]:
        """Return what makes the labels of a version, for the models of a directory."""
        self._read = {
            name: known if (known := self._read.get(name, ("", _NO_TAGS)))[0] == entry.config else _tags(entry.config)
            for name, entry in models.items()
        }
        tags, made = self._read, dict[tuple[str, int], str]()

        def labels_of(name: str, version: int) -> str:
            text = made.get((name, version))
            if text is None:
                pairs = (("model", name), ("version", str(version)), *tags.get(name, ("", _NO_TAGS))[1])
                text = made[name, version] = labels(pairs)
            return text

        return labels_of


def _tags(config: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    tags = orjson.loads(config).get("metric_tags", {}) if '"metric_tags"' in config else {}
    return config, tuple(label_names((f"_{key}", value) for key, value in sorted(tags.items())))
