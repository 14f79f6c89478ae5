"""ONNX Runtime's session options and execution providers, from a model's configuration."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import psutil
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.available_cores import available_cores
from deployments.backends.backend import ModelLoadError
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.parameters import read_boolean, read_integer

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"

_SPIN_US = 20
_SPIN_DURATION_SINCE = (1, 27)

Provider = tuple[str, dict[str, str]]

_CUDA_PARAMETERS = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": {},
    "do_copy_in_default_stream": {},
}
_TENSORRT_PARAMETERS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}


def session_options(runtime: Any, package: ModelPackage) -> Any:
    """Return `onnxruntime.SessionOptions` as `optimization.graph` and `parameters` ask for them.

    Raises:
        ParameterError: a parameter cannot be read.
        ModelLoadError: a custom operator library cannot be loaded.
    """
    config = package.config
    values = dict(package.backend_settings) | parameters(config)
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # a client's bad tensor is an error of its request, not of the server's log
    options.graph_optimization_level = _graph_level(runtime, config.optimization.graph.level)
    options.intra_op_num_threads = read_integer(config.name, values, "intra_op_thread_count") or _thread_count()
    options.inter_op_num_threads = read_integer(config.name, values, "inter_op_thread_count") or _thread_count()
    if read_integer(config.name, values, "execution_mode"):
        options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = read_boolean(config.name, values, "enable_mem_arena", default=True)
    options.enable_mem_pattern = read_boolean(config.name, values, "enable_mem_pattern", default=True)
    _set_spinning(runtime, options, config.name, values)
    if _DEVICE_ALLOCATOR in values:
        wanted = read_boolean(config.name, values, _DEVICE_ALLOCATOR, default=False)
        options.add_session_config_entry(_DEVICE_ALLOCATOR, "1" if wanted else "0")
    register_libraries(options, config.model_operations.op_library_filename, package.model_path)
    return options


def register_libraries(options: Any, libraries: Iterable[str], model_path: str) -> None:
    """Register custom operators, of libraries in the model's folder or where the system finds them.

    Raises:
        ModelLoadError: one cannot be loaded.
    """
    for library in libraries:
        beside_model = os.path.join(model_path, library)
        try:
            options.register_custom_ops_library(beside_model if os.path.exists(beside_model) else library)
        except Exception as error:
            raise ModelLoadError(f"unable to load custom operator library '{library}': {error}") from error


def chooses_threads(package: ModelPackage) -> bool:
    """Whether the model's configuration or the server's says how many threads run an operator, or several operators."""
    values = dict(package.backend_settings) | parameters(package.config)
    names = ("intra_op_thread_count", "inter_op_thread_count", "execution_mode")
    return any(read_integer(package.config.name, values, name) for name in names)


def run_options(runtime: Any, config: ModelConfig) -> Any:
    """Return `onnxruntime.RunOptions`, or None when the defaults do."""
    shrinkage = parameters(config).get("memory.enable_memory_arena_shrinkage")
    if not shrinkage:
        return None
    options = runtime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def providers(config: ModelConfig, spec: InstanceSpec) -> list[Provider]:
    """Return the execution providers an instance asks for, in order; ONNX Runtime adds the CPU behind them.

    Raises:
        ModelLoadError: a precision is not offered.
    """
    accelerators = config.optimization.execution_accelerators
    if spec.kind == "CPU":
        return [(OPENVINO, dict(each.parameters)) for each in accelerators.cpu_execution_accelerator] or [(CPU, {})]
    found: list[Provider] = []
    cuda = _cuda_parameters(config)
    for each in accelerators.gpu_execution_accelerator:
        if each.name == "tensorrt":
            found.append((TENSORRT, {"device_id": str(spec.device), **_tensorrt_parameters(each.parameters)}))
        elif each.name == "cuda":  # a third, `gpu_io`, is historic and means nothing here
            cuda.update(each.parameters)
    return [*found, (CUDA, {"device_id": str(spec.device), **cuda})]


def parameters(config: ModelConfig) -> dict[str, str]:
    """Return `parameters` as plain strings."""
    return {key: value.string_value for key, value in config.parameters.items()}


def _graph_level(runtime: Any, level: int) -> Any:
    levels = runtime.GraphOptimizationLevel
    chosen = {-1: levels.ORT_ENABLE_BASIC, 1: levels.ORT_ENABLE_EXTENDED, 2: levels.ORT_DISABLE_ALL}
    return chosen.get(level, levels.ORT_ENABLE_ALL)


def _thread_count() -> int:
    """Return how many threads a pool has where nobody says it; 0 lets ONNX Runtime have as many as it chooses.

    It starts one for each physical core of the machine, and binds it there, also where a process may use but a few.
    """
    cores, all_cores = available_cores(), os.cpu_count() or 1
    return 0 if cores >= all_cores else min(cores, psutil.cpu_count(logical=False) or all_cores)


def _set_spinning(runtime: Any, options: Any, model_name: str, values: Mapping[str, str]) -> None:
    """Say how long threads spin while they wait for each other.

    ONNX Runtime's own 1 ms takes, after every run, the cores that the rest of the server needs. Without any, models of
    many short operators lose up to a fifth to the waking of threads.
    """
    spins = read_boolean(model_name, values, "session.intra_op.allow_spinning", default=_can_spin_shortly(runtime))
    for scope in ("session.intra_op", "session.inter_op"):
        options.add_session_config_entry(f"{scope}.allow_spinning", "1" if spins else "0")
        if "session.intra_op.allow_spinning" not in values:
            options.add_session_config_entry(f"{scope}.spin_duration_us", str(_SPIN_US))


def _can_spin_shortly(runtime: Any) -> bool:
    """Whether ONNX Runtime knows `spin_duration_us`; an older one ignores it and spins for long."""
    return tuple(int(part) for part in runtime.__version__.split(".")[:2]) >= _SPIN_DURATION_SINCE


def _cuda_parameters(config: ModelConfig) -> dict[str, str]:
    values = parameters(config)
    return {name: words.get(values[name], values[name]) for name, words in _CUDA_PARAMETERS.items() if name in values}


def _tensorrt_parameters(values: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        if name != "precision_mode":
            found[_TENSORRT_PARAMETERS.get(name, name)] = value
        elif value in ("FP16", "BF16", "INT8"):
            found[f"trt_{value.lower()}_enable"] = "1"
        elif value != "FP32":
            raise ModelLoadError(f"unsupported precision mode '{value}' is requested")
    return found
