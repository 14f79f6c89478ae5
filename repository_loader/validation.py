"""The rules a completed and normalised configuration must keep, each with Triton's text.

Source: core's ValidateModelConfig, ValidateModelIOConfig, ValidateInstanceGroup and their kin.
"""

import math
from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import (
    BatchInput,
    DataType,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelMetrics,
    ModelQueuePolicy,
    ModelWarmup,
)

from repository_loader.backend_traits import PYTHON, platform_backend, platforms_here, traits_of
from repository_loader.ensemble_validation import check_ensemble
from repository_loader.findings import Fault
from repository_loader.model_files import ENSEMBLE, is_ensemble, leaves_folder
from repository_loader.overrides import OverrideError, read_overrides
from repository_loader.sequence_validation import check_sequence_batching
from repository_loader.tensor_validation import check_tensors

MAX_NAME_BYTES = 255
MAX_INSTANCES = 1024
_MINIMUM_COMPUTE_CAPABILITY = "6.0"


def check_name(name: str) -> str | None:
    """Return what is wrong with a model's name, None if it may stand in a URL and a path."""
    if not 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        return f"model name must have 1 to {MAX_NAME_BYTES} bytes"
    if name in (".", "..") or name != name.strip() or any(char in "/\\" or not char.isprintable() for char in name):
        return f"invalid model name {name!r}: no slash, backslash, control character, leading or trailing space"
    return None


def check_config(config: ModelConfig, gpu_ids: Sequence[int]) -> Iterator[Fault]:
    """Yield every fault, the gravest first; `gpu_ids` are the GPUs that an instance may name."""
    yield from check_platform(config)
    if config.max_batch_size < 0:
        yield Fault("max_batch_size", f"'max_batch_size' must be non-negative value for {config.name}")
    yield from check_tensors(config)
    yield from _check_batch_tensors(config)
    yield from _check_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        yield from check_sequence_batching(config)
    if is_ensemble(config):
        yield from check_ensemble(config)
    else:
        yield from _check_groups(config, gpu_ids)
        yield from _check_warmup(config)
    yield from check_cache(config)
    yield from _check_metrics(config)
    try:
        read_overrides(config)
    except OverrideError as error:
        yield Fault(f'parameters["{error.key}"]', str(error))


def check_platform(config: ModelConfig) -> Iterator[Fault]:
    """Yield what is wrong with the fields that say which code is to run which files; needs nothing completed."""
    name = config.name
    if not name:
        yield Fault("name", "model configuration must specify 'name'")
    if config.platform == ENSEMBLE and config.backend:
        yield Fault("backend", f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type")
    elif config.platform != ENSEMBLE and not config.backend:
        known = f"; known are {platforms_here()}" if config.platform else ""
        yield Fault("platform", f"unexpected platform type '{config.platform}' for {name}{known}")
    elif config.platform and config.backend:
        # A backend without platforms of its own takes any.
        has_platforms = any(file.platform for file in traits_of(config).files)
        if has_platforms and platform_backend(config.platform) != config.backend:
            yield Fault(
                "platform", f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}"
            )
    if config.HasField("ensemble_scheduling") and config.platform != ENSEMBLE:
        message = f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        yield Fault("ensemble_scheduling", message)
    for path in ("default_model_filename", "runtime"):
        if leaves_folder(getattr(config, path)):
            yield Fault(path, f"'{path}' of model '{name}' leaves the folder it belongs to")
    for key, value in config.cc_model_filenames.items():
        if leaves_folder(value):
            yield Fault(
                f'cc_model_filenames["{key}"]',
                f"'cc_model_filenames' of model '{name}' leaves the folder it belongs to",
            )


def _check_batch_tensors(config: ModelConfig) -> Iterator[Fault]:
    name = config.name
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for index, entry in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        kind = BatchInput.Kind.Name(entry.kind)
        if len(entry.source_input) != 1:
            yield Fault(
                path, f"batch input kind '{kind}' expects 1 source input, got {len(entry.source_input)} for {name}"
            )
        if entry.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            yield Fault(f"{path}.data_type", f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {name}")
        for source in entry.source_input:
            if source not in inputs:
                yield Fault(f"{path}.source_input", f"unknown source input name '{source}' for {name}")
    seen: set[str] = set()
    for index, scattered in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        if len(scattered.source_input) != 1:
            yield Fault(
                path,
                "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, "
                f"got {len(scattered.source_input)} for {name}",
            )
        for source in scattered.source_input:
            if source not in inputs:
                yield Fault(f"{path}.source_input", f"unknown source input name '{source}' for {name}")
        for target in scattered.target_name:
            if target not in outputs:
                yield Fault(f"{path}.target_name", f"unknown target output name '{target}' for {name}")
            if target in seen:
                message = f"target output name '{target}' can only be specified once for {name}"
                yield Fault(f"{path}.target_name", message)
            seen.add(target)


def _check_dynamic_batching(config: ModelConfig) -> Iterator[Fault]:
    if not config.HasField("dynamic_batching"):
        return
    name, batching = config.name, config.dynamic_batching
    for index, size in enumerate(batching.preferred_batch_size):
        path = f"dynamic_batching.preferred_batch_size[{index}]"
        if size <= 0:
            yield Fault(path, f"dynamic batching preferred size must be positive for {name}")
        elif size > config.max_batch_size:
            yield Fault(path, f"dynamic batching preferred size must be <= max batch size for {name}")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            message = f"default priority level must be in range [1, {levels}] for {name}"
            yield Fault("dynamic_batching.default_priority_level", message)
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                yield Fault(
                    f'dynamic_batching.priority_queue_policy["{level}"]',
                    f"priority queue policy must have priority level in range [1, {levels}] for {name}",
                )
    if batching.preserve_ordering:
        if levels > 1:
            yield Fault(
                "dynamic_batching.preserve_ordering",
                f"Only one priority level is allowed when 'preserve_ordering' is true for {name}",
            )
        for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
            if policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds:
                yield Fault(
                    "dynamic_batching.preserve_ordering",
                    f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}",
                )
                return


def _check_groups(config: ModelConfig, gpu_ids: Sequence[int]) -> Iterator[Fault]:
    count = sum(max(0, group.count) * max(1, len(group.gpus)) for group in config.instance_group)
    if count > MAX_INSTANCES:
        yield Fault("instance_group", f"model {config.name} has {count} instances, more than {MAX_INSTANCES}")
    for index, group in enumerate(config.instance_group):
        path = f"instance_group[{index}]"
        prefix = f"instance group {group.name} of model {config.name}"
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        if kind != "KIND_GPU":
            if group.gpus:
                yield Fault(f"{path}.gpus", f"{prefix} has kind {kind} but specifies one or more GPUs")
        elif not gpu_ids:
            instead = "" if traits_of(config).needs_gpu else "; --kind-gpu-fallback-to-cpu runs it on the CPU"
            yield Fault(f"{path}.kind", f"{prefix} has kind KIND_GPU but no GPUs are available{instead}")
        else:
            for gpu in group.gpus:
                if gpu not in gpu_ids:
                    yield Fault(
                        f"{path}.gpus",
                        f"{prefix} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum "
                        f"required CUDA compute compatibility of {_MINIMUM_COMPUTE_CAPABILITY} are: "
                        f"{' '.join(map(str, gpu_ids))}",
                    )
        if group.profile and config.platform != "tensorrt_plan":
            yield Fault(
                f"{path}.profile", f"{prefix} specifies profile field which is only supported for TensorRT models"
            )
        for profile in group.profile:
            if config.platform == "tensorrt_plan" and not (profile.isascii() and profile.isdigit()):
                yield Fault(f"{path}.profile", f"{prefix} specifies profile '{profile}', which is not a number >= 0")


def _check_warmup(config: ModelConfig) -> Iterator[Fault]:
    sequence = config.sequence_batching
    added = {state.input_name for state in sequence.state} | {control.name for control in sequence.control_input}
    declared = {tensor.name: tensor for tensor in config.input}
    for index, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            continue  # it is never run, whatever it says
        if sample.batch_size > max(1, config.max_batch_size):
            yield Fault(
                f"model_warmup[{index}].batch_size",
                f"failed to run warmup sample '{sample.name}': batch size {sample.batch_size} for '{config.name}', "
                f"max allowed is {config.max_batch_size}",
            )
        for name, given in sample.inputs.items():
            path = f'model_warmup[{index}].inputs["{name}"]'
            tensor = declared.get(name)
            if tensor is not None:
                yield from _check_warmup_input(config, path, tensor, given)
            elif name not in added and traits_of(config).name != PYTHON:  # a Python model gets what is not declared too
                yield Fault(path, f"unexpected inference input '{name}' for model '{config.name}'")
            if any(dim < 0 for dim in given.dims):
                message = f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
                yield Fault(f"{path}.dims", message)
            if given.WhichOneof("input_data_type") is None:
                yield Fault(path, f"warmup setting expects input '{name}' to have input_data_type set")
            if given.data_type == DataType.TYPE_INVALID:
                yield Fault(path, f"warmup setting expects input '{name}' to have 'data_type' set")
            if leaves_folder(given.input_data_file):
                yield Fault(path, f"warmup data file of input '{name}' leaves the folder it belongs to")


def _check_warmup_input(
    config: ModelConfig, path: str, tensor: ModelInput, given: ModelWarmup.Input
) -> Iterator[Fault]:
    of = f"input '{tensor.name}' of warmup of model '{config.name}'"
    datatypes = (given.data_type, tensor.data_type)
    if given.data_type != tensor.data_type and DataType.TYPE_INVALID not in datatypes:
        expected, got = (DataType.Name(each.data_type).removeprefix("TYPE_") for each in (tensor, given))
        yield Fault(f"{path}.data_type", f"{of} has data-type {got}, but the model expects {expected}")
    fits = len(given.dims) == len(tensor.dims) and all(
        want in (-1, got) for want, got in zip(tensor.dims, given.dims, strict=True)
    )
    if not fits and not any(dim < 0 for dim in given.dims):
        yield Fault(f"{path}.dims", f"{of} has dims {list(given.dims)}, but the model expects {list(tensor.dims)}")


def check_cache(config: ModelConfig) -> Iterator[Fault]:
    """Yield a fault where responses are to be kept of a model whose responses cannot be."""
    if not config.response_cache.enable:
        return
    for used, what in (
        (config.HasField("sequence_batching"), "sequence batching scheduler"),
        (config.model_transaction_policy.decoupled, "'decoupled' transaction policy"),
    ):
        if used:
            yield Fault(
                "response_cache",
                f"Response Cache does not currently support model {config.name} with {what}. "
                "Please disable the response cache.",
            )


def _check_metrics(config: ModelConfig) -> Iterator[Fault]:
    control: ModelMetrics.MetricControl
    for index, control in enumerate(config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if not control.HasField("metric_identifier"):
            yield Fault(path, "metric control must specify 'metric_identifier'")
        elif not control.metric_identifier.family:
            yield Fault(f"{path}.metric_identifier", "metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            yield Fault(path, "metric control must specify 'histogram_options'")
        elif not control.histogram_options.buckets:
            yield Fault(f"{path}.histogram_options", "histogram options must specify non-empty 'buckets'")
        elif any(map(math.isnan, control.histogram_options.buckets)):
            yield Fault(f"{path}.histogram_options", "histogram options must specify 'buckets' that are numbers")
