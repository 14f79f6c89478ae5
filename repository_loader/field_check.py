"""What a configuration sets that has no effect here, or cannot be had: `field_rules` applied to one model."""

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from repository_loader.backend_traits import traits_of
from repository_loader.field_rules import ENSEMBLE, FIELDS, FIRST_RESPONSE_FAMILY, FieldRule, Verdict
from repository_loader.findings import Fault
from repository_loader.model_files import is_ensemble


def ignored_fields(config: ModelConfig) -> Iterator[Fault]:
    """Yield a sentence for each field that has no effect; for a configuration before defaults were filled in."""
    for rule, path in _judged(config, "warning"):
        yield Fault(path, f"'{path}' of model '{config.name}' has no effect: {rule.because}")
    for index, group in enumerate(config.instance_group):
        if config.backend == "tensorrt" and len(group.profile) > 1:
            path = f"instance_group[{index}].profile[1]"
            yield Fault(path, f"'{path}' of model '{config.name}' has no effect: instances use the first profile only")
    for index, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            path = f"model_warmup[{index}]"
            yield Fault(path, f"'{path}' of model '{config.name}' has no effect: it has no batch_size")
    for path, because in _idle_policies(config.dynamic_batching):
        yield Fault(path, f"'{path}' of model '{config.name}' has no effect: {because}")
    for index, control in enumerate(config.model_metrics.metric_control):
        family = control.metric_identifier.family
        if family not in ("", FIRST_RESPONSE_FAMILY):
            yield Fault(
                f"model_metrics.metric_control[{index}].metric_identifier.family",
                f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core.",
            )


def _idle_policies(batching: ModelDynamicBatching) -> Iterator[tuple[str, str]]:
    """Yield what of the queue policies Triton looks at only beside another field, and why it has no effect."""
    of_levels = "dynamic_batching.priority_queue_policy"
    policies = {"dynamic_batching.default_queue_policy": batching.default_queue_policy}
    if batching.priority_levels:
        policies |= {f'{of_levels}["{level}"]': policy for level, policy in batching.priority_queue_policy.items()}
    elif batching.priority_queue_policy:
        yield of_levels, "there are no priority_levels"
    for path, policy in policies.items():
        for name in ("timeout_action", "allow_timeout_override"):
            if getattr(policy, name) and not policy.default_timeout_microseconds:
                yield f"{path}.{name}", "there is no default_timeout_microseconds"


def refused_fields(config: ModelConfig) -> Iterator[Fault]:
    """Yield a fault for each field without which Eagleray could load the model."""
    for rule, path in _judged(config, "refused"):
        yield Fault(path, f"unable to load model '{config.name}', '{path}' is not supported: {rule.because}")


def _judged(config: ModelConfig, verdict: Verdict) -> Iterator[tuple[FieldRule, str]]:
    column = ENSEMBLE if is_ensemble(config) else traits_of(config).rules or traits_of(config).name
    for rule, path, value in _set_fields(config, "", ""):
        if rule.verdict(column) == verdict and not (rule.harmless and rule.harmless(config, value)):
            yield rule, path


def _set_fields(message: Any, pattern: str, prefix: str) -> Iterator[tuple[FieldRule, str, Any]]:
    for field, value in message.ListFields():
        rule = FIELDS.get(pattern + field.name)
        path = prefix + field.name
        if rule is not None:
            yield rule, path, value
        elif not field.is_repeated:
            yield from _set_fields(value, f"{pattern}{field.name}.", f"{path}.")
        else:
            for index, item in enumerate(value):
                yield from _set_fields(item, f"{pattern}{field.name}.", f"{path}[{index}].")
