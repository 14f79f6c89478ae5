"""Defaults that Triton writes into a configuration when it loads a model, so that `GET …/config` shows them.

Source: core's NormalizeModelConfig and NormalizeInstanceGroup.
"""

from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository_loader.backend_traits import traits_of
from repository_loader.findings import Fault
from repository_loader.model_files import is_ensemble

DEFAULT_SEQUENCE_IDLE_US = 1_000_000


def normalise(config: ModelConfig, gpu_ids: Sequence[int], kind_gpu_fallback_to_cpu: bool = False) -> Iterator[Fault]:
    """Fill defaults in place; yields a remark for each change that an operator should know of."""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if is_ensemble(config):
        return
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(name):
            getattr(config.optimization, name).enable = True
    _normalise_scheduler(config)
    yield from _normalise_groups(config, gpu_ids, kind_gpu_fallback_to_cpu)
    yield from _complete_warmup(config)


def _normalise_scheduler(config: ModelConfig) -> None:
    choice = config.WhichOneof("scheduling_choice")
    if choice == "dynamic_batching":
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size > 0:
            batching.preferred_batch_size.append(config.max_batch_size)
    elif choice == "sequence_batching":
        sequence = config.sequence_batching
        if sequence.max_sequence_idle_microseconds == 0:
            sequence.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_US
        if sequence.HasField("oldest") and not sequence.oldest.preferred_batch_size and config.max_batch_size > 0:
            sequence.oldest.preferred_batch_size.append(config.max_batch_size)


def _normalise_groups(config: ModelConfig, gpu_ids: Sequence[int], fall_back: bool) -> Iterator[Fault]:
    explicit = bool(config.instance_group)
    if not explicit:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            usable = "GPU" in traits_of(config).kinds and bool(gpu_ids) and set(group.gpus) <= set(gpu_ids)
            group.kind = ModelInstanceGroup.KIND_GPU if usable else ModelInstanceGroup.KIND_CPU
            if not usable:
                group.ClearField("gpus")
        elif group.kind == ModelInstanceGroup.KIND_GPU and not gpu_ids and fall_back:
            group.kind = ModelInstanceGroup.KIND_CPU
            group.ClearField("gpus")
            yield Fault(
                f"instance_group[{index}].kind",
                f"instance group {group.name} of model {config.name} has kind KIND_GPU but no GPUs are available; "
                "it runs on the CPU",
            )
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpu_ids)
        if group.count < 1:
            on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
            group.count = traits_of(config).cpu_count if on_cpu else 1


def _complete_warmup(config: ModelConfig) -> Iterator[Fault]:
    """Add zeros for required inputs that a warmup sample leaves out, where Triton fails the load."""
    for index, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            continue  # it is never run, whatever it leaves out
        for tensor in config.input:
            if tensor.optional or tensor.name in sample.inputs:
                continue
            made = sample.inputs[tensor.name]
            made.data_type = tensor.data_type
            made.dims.extend(max(dim, 1) for dim in tensor.dims)
            made.zero_data = True
            yield Fault(
                f"model_warmup[{index}].inputs",
                f"warmup sample '{sample.name}' has no input '{tensor.name}'; zeros of {list(made.dims)} are sent",
            )
