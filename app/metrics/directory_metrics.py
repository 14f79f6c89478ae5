"""What the controller's directory says of each model: the whole cluster's, so every node tells the same."""

from collections.abc import Callable, Iterator, Mapping

from app.metrics.config_facts import config_facts
from app.metrics.exposition import Exposition, Sample, escape
from app.metrics.model_labels import plain_name
from deployments.control.directory import READY, UNAVAILABLE, ModelEntry, VersionEntry
from repository_loader.traffic import NO_TRAFFIC, Traffic

_CANARY_STATES = ("running", "succeeded", "rolled back", "stopped")
_FAILED = {1: VersionEntry(UNAVAILABLE)}
"""How the repository index shows a model without versions that has a reason for that."""


def write_directory(out: Exposition, labels_of: Callable[[str, int], str], models: Mapping[str, ModelEntry]) -> None:
    """Write states, limits, traffic and steps."""
    versions = [
        (labels_of(name, number), name, number, version)
        for name, entry in sorted(models.items())
        for number, version in sorted((_FAILED if entry.reason and not entry.versions else entry.versions).items())
    ]
    out.pause()
    states = ((f'{labels},state="{version.state}"', 1) for labels, _, _, version in versions)
    text = "State of each version in the whole cluster, as in the repository index; every node tells the same"
    out.family("eagleray_model_state", "gauge", text, states)
    down = ((labels, int(version.state == UNAVAILABLE and not version.left)) for labels, _, _, version in versions)
    text = "1 for a version that nobody has unloaded and that cannot serve; every node tells the same"
    out.family("eagleray_model_down", "gauge", text, down)
    sizes = ((labels, config_facts(name, models[name].config).max_batch_size) for labels, name, _, _ in versions)
    text = "The max_batch_size of a version's configuration; every node tells the same"
    out.family("eagleray_model_max_batch_size", "gauge", text, sizes)
    steps = (
        (f'{labels},step="{escape(step)}"', 1)
        for labels, name, _, _ in versions
        for step in sorted({plain_name(each, models[name]) for each in config_facts(name, models[name].config).steps})
    )
    text = "1 for each model that is a step of an ensemble; every node tells the same"
    out.family("eagleray_ensemble_step", "gauge", text, steps)
    text = "Share of the requests without a version that a version gets; every node tells the same"
    out.family("eagleray_model_traffic_ratio", "gauge", text, _shares(labels_of, models))
    text = "1 for the state of the last canary of a model, with its version; every node tells the same"
    out.family("eagleray_canary_state", "gauge", text, _canaries(labels_of, models))


def _shares(labels_of: Callable[[str, int], str], models: Mapping[str, ModelEntry]) -> Iterator[Sample]:
    for name, entry in sorted(models.items()):
        ready = [number for number, version in entry.versions.items() if version.state == READY]
        shares = (Traffic.from_dict(entry.traffic) if entry.traffic else NO_TRAFFIC).shares(ready)
        yield from ((labels_of(name, number), shares.get(number, 0)) for number in sorted(ready))


def _canaries(labels_of: Callable[[str, int], str], models: Mapping[str, ModelEntry]) -> Iterator[Sample]:
    for name, entry in sorted(models.items()):
        if canary := entry.traffic.get("canary"):
            labels = labels_of(name, entry.traffic["canary_version"])
            yield from ((f'{labels},state="{each}"', int(each == canary["state"])) for each in _CANARY_STATES)
