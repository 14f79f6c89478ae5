"""The keys of `parameters` that Eagleray knows: what each is for, and whether its value can be read.

Source: the backends' own pages; `eagleray.*` is Eagleray's own and read by `overrides`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository_loader.backend_traits import PYTHON, traits_of
from repository_loader.ensemble_conditions import DEFAULT, WHEN
from repository_loader.findings import Fault
from repository_loader.gpu_inputs import FORCE_CPU_ONLY, may_keep_inputs_on_gpus
from repository_loader.model_files import is_ensemble
from repository_loader.overrides import OVERRIDES, PREFIX, SHORT

Kind = Literal["text", "integer", "boolean"]

MAX_THREADS = 1024
_TRUE, _FALSE = ("true", "on", "1"), ("false", "off", "0")


class ParameterError(Exception):
    """A value cannot be read; the message names key and value."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key; `because` says why it has no effect, "" when it has one, and `harmless` lists values that say so too.

    One that is `of_gpus` asks instances on the CPU for nothing that they do not do, and has its effect on those on GPUs
    as far as `gpu_inputs` says.
    """

    name: str
    kind: Kind
    meaning: str
    because: str = ""
    harmless: tuple[str, ...] = ()
    of_gpus: bool = False


_DELAY = Parameter("execute_delay_ms", "integer", "how long a batch takes")
_FUSERS = "the executor and fuser of this PyTorch are not switched"

EVERY_BACKEND: tuple[Parameter, ...] = (
    Parameter(
        "TRITON_BATCH_STRATEGY_PATH",
        "text",
        "library that decides which requests form a batch",
        "batches form as `dynamic_batching` says, no library is loaded",
    ),
)
PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "onnxruntime": (
        Parameter("intra_op_thread_count", "integer", "threads within an operator"),
        Parameter("inter_op_thread_count", "integer", "threads for operators side by side"),
        Parameter("execution_mode", "integer", "0: operators one by one, 1: side by side"),
        Parameter(
            "share_session_between_instances",
            "boolean",
            "whether the instances of a group share a session",
            "instances on one device always share a session",
            ("true", "True", "TRUE", "1"),
        ),
        Parameter("enable_mem_arena", "boolean", "whether memory is kept in an arena"),
        Parameter("enable_mem_pattern", "boolean", "whether memory is laid out ahead"),
        Parameter("memory.enable_memory_arena_shrinkage", "text", "arenas to shrink after a run, as `cpu:0;gpu:0`"),
        Parameter("session.use_device_allocator_for_initializers", "boolean", "whether weights stay out of the arena"),
        Parameter(
            "session.intra_op.allow_spinning",
            "boolean",
            "whether threads spin for 1 ms while they wait (default: for 20 µs)",
        ),
        Parameter("cudnn_conv_algo_search", "text", "0: exhaustive, 1: heuristic, 2: default"),
        Parameter("gpu_mem_limit", "text", "bytes of GPU memory"),
        Parameter("arena_extend_strategy", "text", "0: next power of two, 1: same as requested"),
        Parameter("do_copy_in_default_stream", "text", "whether copies use the default stream"),
    ),
    "pytorch": (
        Parameter("INFERENCE_MODE", "boolean", "inference mode (default) or only no gradients"),
        Parameter("INTRA_OP_THREAD_COUNT", "integer", "threads within an operator"),
        Parameter("INTER_OP_THREAD_COUNT", "integer", "threads for operators side by side; once for each process"),
        Parameter("DISABLE_OPTIMIZED_EXECUTION", "boolean", "whether graphs run as they are"),
        Parameter("DISABLE_CUDNN", "boolean", "whether cuDNN is left out"),
        Parameter("ENABLE_CACHE_CLEANING", "boolean", "whether free GPU memory goes back after each run"),
        Parameter(
            "ENABLE_WEIGHT_SHARING",
            "boolean",
            "whether instances on a device share the module with what it keeps between runs, not only parameters",
        ),
        Parameter("ENABLE_JIT_EXECUTOR", "boolean", "", _FUSERS),
        Parameter("ENABLE_JIT_PROFILING", "boolean", "", _FUSERS),
        Parameter("ENABLE_TENSOR_FUSER", "boolean", "", _FUSERS),
        Parameter("ENABLE_NVFUSER", "text", "", _FUSERS),
    ),
    "tensorrt": (),
    PYTHON: (
        Parameter(
            "EXECUTION_ENV_PATH",
            "text",
            "folder or conda-pack archive of the Python environment that the model's processes run in",
        ),
        Parameter(
            FORCE_CPU_ONLY,
            "text",
            "`no`: inputs in CUDA shared memory stay there if an instance is on that GPU; else all are in CPU memory",
            "inputs stay in GPU memory where it is 'no', of models without a sequence batcher and a response cache",
            ("yes", ""),
            of_gpus=True,
        ),
    ),
    "identity": (
        _DELAY,
        Parameter("instance_wise_delay_multiplier", "integer", "times the instance's place: multiplies that"),
        Parameter("creation_delay_sec", "integer", "how long the model takes to load"),
    ),
    "sequence": (_DELAY,),
    "dyna_sequence": (_DELAY,),
    "square": (
        Parameter("CUSTOM_INFER_DELAY_NS", "integer", "how long a response takes"),
        Parameter("CUSTOM_OUTPUT_DELAY_NS", "integer", "how long its output takes"),
        Parameter("CUSTOM_FAIL_COUNT", "integer", "how many of the last responses that are sent fail"),
        Parameter("CUSTOM_EMPTY_COUNT", "integer", "how many of the last responses are not sent"),
    ),
}
"""The keys by backend; any other key of a Python model is for the model itself."""


_OF_REPLICAS = frozenset({"replicas", "num_cpus", "memory_bytes"})
_NAMES = frozenset(parameter.name for parameters in PARAMETERS.values() for parameter in parameters)


def ignored_parameters(config: ModelConfig) -> Iterator[Fault]:
    """Yield a sentence for each key that has no effect."""
    for key, value in sorted(config.parameters.items()):
        because = _why_ignored(config, key, value.string_value)
        if because:
            yield Fault(f'parameters["{key}"]', f"parameter '{key}' of model '{config.name}' has no effect: {because}")


def unreadable_parameters(config: ModelConfig, settings: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for each key whose value is not of its kind, be it the model's or one of its backend's settings."""
    values = {**settings, **{key: value.string_value for key, value in config.parameters.items()}}
    for parameter in PARAMETERS.get(traits_of(config).name, ()):
        try:
            if parameter.kind == "integer":
                read_integer(config.name, values, parameter.name)
            elif parameter.kind == "boolean":
                read_boolean(config.name, values, parameter.name, default=False)
        except ParameterError as error:
            yield Fault(f'parameters["{parameter.name}"]', str(error))


def read_integer(model: str, values: Mapping[str, str], name: str) -> int:
    """Return a number, 0 when there is none.

    Raises:
        ParameterError: it is no integer, or one of more threads than a process should have, or no execution mode.
    """
    value = _text(values, name)
    try:
        number = int(value) if value else 0
    except ValueError:
        raise _unreadable(model, name, "an integer", value) from None
    if number > MAX_THREADS and name.lower().endswith("_thread_count"):
        raise _unreadable(model, name, f"an integer of up to {MAX_THREADS}", value)
    if number not in (0, 1) and name == "execution_mode":
        raise _unreadable(model, name, "0 or 1", value)
    return number


def read_boolean(model: str, values: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a truth value; true, on, 1, false, off and 0 in any case, as Triton's backends read it.

    Raises:
        ParameterError: it is none of them.
    """
    value = _text(values, name)
    if value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    if value:
        raise _unreadable(model, name, "a boolean", value)
    return default


def _text(values: Mapping[str, str], name: str) -> str:
    assert name in _NAMES, f"{name} is missing in PARAMETERS"
    return values.get(name, "")


def _unreadable(model: str, name: str, kind: str, value: str) -> ParameterError:
    return ParameterError(f"unable to load model '{model}', '{name}' is not {kind}: '{value}'")


def _names_gpu(config: ModelConfig) -> bool:
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def _shared_placement(config: ModelConfig) -> str:
    """Return the placement that a model asks for in a process with others, "" where it asks for none such."""
    key = f"{PREFIX}placement"
    given = config.parameters[key].string_value.strip() if key in config.parameters else ""
    return given if given in ("packed", "embedded") else ""


def _is_embedded(config: ModelConfig) -> bool:
    return _shared_placement(config) == "embedded" and not config.HasField("sequence_batching")  # that one is packed


def _why_ignored(config: ModelConfig, key: str, value: str) -> str:
    """Return why a key has no effect, "" when it has one; `parameters { }` has no key, and says nothing."""
    if not key:
        return ""
    name = key.removeprefix(PREFIX)
    if name.startswith(SHORT) and name in OVERRIDES and (placement := _shared_placement(config)):
        return f"only isolated models scale, and '{PREFIX}placement' is '{placement}'"
    if key.startswith(PREFIX):
        if name == "execution_timeout_ms" and traits_of(config).name != PYTHON:
            return "only batches of Python models are ended"
        if name in _OF_REPLICAS and _is_embedded(config):
            return "an embedded model has no replicas of its own, but runs in every ingress"
        if name in OVERRIDES or (is_ensemble(config) and key.startswith((WHEN, DEFAULT))):
            return ""
        close = get_close_matches(name, OVERRIDES, 1)
        return "Eagleray has no such parameter" + (f"; did you mean '{PREFIX}{close[0]}'?" if close else "")
    if key.startswith(SHORT) and key in OVERRIDES:
        return f"'{PREFIX}{key}' stands beside it" if PREFIX + key in config.parameters else ""
    for parameter in (*EVERY_BACKEND, *PARAMETERS.get(traits_of(config).name, ())):
        if parameter.name == key:
            harmless = value in parameter.harmless
            if parameter.of_gpus:
                harmless = harmless or not _names_gpu(config) or may_keep_inputs_on_gpus(config)
            return "" if harmless else parameter.because
    if traits_of(config).name == PYTHON:
        return ""
    return "an ensemble has no parameters" if is_ensemble(config) else f"backend '{config.backend}' does not know it"
