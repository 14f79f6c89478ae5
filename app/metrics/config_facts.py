"""What metrics need of a model's configuration."""

from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from app.metrics.exposition import label_names

_CONFIGURATIONS: Final = 1 << 14


class ConfigFacts(NamedTuple):
    """The `metric_tags` as pairs of label and value, the largest batch, and the models of an ensemble's steps."""

    tags: tuple[tuple[str, str], ...] = ()
    max_batch_size: int = 0
    steps: tuple[str, ...] = ()


@lru_cache(maxsize=_CONFIGURATIONS)
def config_facts(config: str) -> ConfigFacts:
    """Read a configuration as JSON; "" has no facts."""
    if not config:
        return ConfigFacts()
    found = orjson.loads(config)
    tags = label_names((f"_{key}", value) for key, value in sorted(found.get("metric_tags", {}).items()))
    steps = {step.get("model_name", "") for step in found.get("ensemble_scheduling", {}).get("step", ())}
    return ConfigFacts(tuple(tags), int(found.get("max_batch_size", 0)), tuple(sorted(steps)))
