"""What metrics need of a model's configuration."""

from typing import Final, NamedTuple

import orjson

from app.metrics.exposition import label_names

_MAX_MODELS: Final = 1 << 12


class ConfigFacts(NamedTuple):
    """The `metric_tags` as pairs of label and value, the largest batch, and the models of an ensemble's steps."""

    tags: tuple[tuple[str, str], ...] = ()
    max_batch_size: int = 0
    steps: tuple[str, ...] = ()


_known: Final[dict[str, tuple[str, ConfigFacts]]] = {}
"""The last configuration of each model, with what was read of it."""


def config_facts(model: str, config: str) -> ConfigFacts:
    """Read a model's configuration as JSON, when it is another than the last; "" has no facts."""
    known = _known.get(model)
    if known is None or known[0] != config:
        if known is None and len(_known) >= _MAX_MODELS:
            _known.clear()
        known = _known[model] = config, _read(config)
    return known[1]


def _read(config: str) -> ConfigFacts:
    if not config:
        return ConfigFacts()
    found = orjson.loads(config)
    # A sample with two labels of one name would make the whole text unreadable.
    tags = dict(label_names((f"_{key}", value) for key, value in sorted(found.get("metric_tags", {}).items())))
    steps = {step.get("model_name", "") for step in found.get("ensemble_scheduling", {}).get("step", ())}
    return ConfigFacts(tuple(tags.items()), int(found.get("max_batch_size", 0)), tuple(sorted(steps)))
