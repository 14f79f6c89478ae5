"""The TensorRT backend: serialized engines (`model.plan`), with PyTorch for device memory and streams."""

import ctypes
import logging
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Final

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelOptimizationPolicy

from deployments.backends.backend import Batch, ModelInstance, ModelLoadError
from deployments.backends.compute_capability import file_for
from deployments.backends.device_inputs import is_worth_fetching, start_fetching
from deployments.backends.gpu_fault import internal_error
from deployments.backends.row_batch import arrays_of, concatenate, joined_shape, runs, share_out
from deployments.core.clock import Clock
from protocol.errors import Internal, ServingError
from protocol.infer import Array, InferRequest, InferResponse
from protocol.signature import Signature, TensorSpec
from repository_loader.device_parts import group_of
from repository_loader.package import InstanceSpec, ModelPackage

_LOG = logging.getLogger(__name__)
_PLUGINS: Final = "plugins"
_VERSION_COMPATIBLE: Final = "version-compatible"


class TensorRTBackend:
    """Loads engines; instances on one GPU share the engine, each has its execution context, stream and buffers."""

    def __init__(self, clock: Clock | None = None) -> None:
        del clock  # every batch is answered when `execute` returns

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Deserialize the engine once for each GPU.

        Raises:
            ImportError: TensorRT or PyTorch is not installed.
            ModelLoadError: the GPU is missing, or the engine does not fit this TensorRT, this GPU or the configuration.
        """
        import tensorrt
        import torch

        if not torch.cuda.is_available() or any(spec.kind != "GPU" for spec in specs):
            raise ModelLoadError(f"model '{package.name}' is a TensorRT engine: every instance needs a GPU (KIND_GPU)")
        logger = tensorrt.Logger(tensorrt.Logger.WARNING)
        tensorrt.init_libnvinfer_plugins(logger, "")
        _load_plugins(package)
        engines: dict[int, Any] = {}
        instances: list[ModelInstance] = []
        for spec in specs:
            with torch.cuda.device(spec.device):
                if spec.device not in engines:
                    engines[spec.device] = _engine(tensorrt, logger, package, file_for(package, spec))
                profile = _profile(package, spec, engines[spec.device])
                instances.append(TensorRTInstance(tensorrt, torch, spec, package.config, engines[spec.device], profile))
        return instances


class TensorRTInstance:
    """One execution context of an engine with its own stream."""

    def __init__(
        self, tensorrt: Any, torch: Any, spec: InstanceSpec, config: ModelConfig, engine: Any, profile: int
    ) -> None:
        signature = Signature.for_backend(config)
        policy = config.optimization
        self.name = spec.name
        self.may_run_inline = True
        self.on_gpu = True
        self._torch = torch
        self._signature = signature
        self._device = torch.device("cuda", spec.device)
        high = policy.priority == ModelOptimizationPolicy.PRIORITY_MAX
        self._stream = torch.cuda.Stream(self._device, priority=-1 if high else 0)
        self._pin_inputs = bool(policy.input_pinned_memory.enable)
        self._pin_outputs = bool(policy.output_pinned_memory.enable)
        self._engine = engine
        self._inputs, self._outputs = _bindings(tensorrt, torch, engine, signature)
        self._context = engine.create_execution_context()
        if self._context is None:
            raise ModelLoadError(f"no memory for the execution context of model instance '{spec.name}'")
        if not self._context.set_optimization_profile_async(profile, self._stream.cuda_stream):
            raise ModelLoadError(f"model instance '{spec.name}' cannot use optimization profile {profile}")
        self._stream.synchronize()

    def execute(self, batch: Batch) -> None:
        """Run the requests as one batch on the instance's stream and wait for it."""
        results: list[InferResponse | ServingError] = []
        try:
            with self._torch.cuda.stream(self._stream):
                for requests in runs(batch.requests, self._signature):
                    results.extend(self._run(batch, requests))
        except ServingError:
            with suppress(RuntimeError):  # of a GPU that is lost
                self._stream.synchronize()  # inputs may be on their way from the memory of the requests
            raise
        except Exception as error:
            _LOG.exception("model instance '%s' failed", self.name)
            first_line, _, _ = str(error).partition("\n")
            message = f"TensorRT could not run model instance '{self.name}': {first_line}"
            raise internal_error(message, str(error)) from None
        batch.results = results

    def close(self) -> None:
        """Free the context, then the engine once no other instance holds it."""
        self._stream.synchronize()
        self._context = None
        self._engine = None

    def _run(self, batch: Batch, requests: Sequence[InferRequest]) -> list[InferResponse | ServingError]:
        context = self._context
        # kept until the stream has been waited for: the engine reads from them
        inputs = {name: self._upload(requests, name, dtype) for name, dtype in self._inputs.items()}
        for name, tensor in inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise Internal(
                    f"model '{self._signature.model_name}' does not take shape {list(tensor.shape)} for input '{name}' "
                    "in its optimization profile"
                )
            if not tensor.numel():  # TensorRT takes no null address
                inputs[name] = self._torch.empty(1, dtype=tensor.dtype, device=self._device)
            context.set_tensor_address(name, inputs[name].data_ptr())
        missing = context.infer_shapes()
        if missing:
            raise Internal(f"model '{self._signature.model_name}' needs the values of shape tensors {list(missing)}")
        outputs = {name: self._allocate(name, dtype) for name, dtype in self._outputs.items()}
        if not batch.infer_start_ns:
            batch.infer_start_ns = monotonic_ns()
        if not context.execute_async_v3(self._stream.cuda_stream):
            self._stream.synchronize()  # raises the error of a GPU that is lost
            raise Internal(f"TensorRT could not run model instance '{self.name}'")
        # every engine output needs an address, configured ones only are copied back
        copies = {
            name: self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pin_outputs).copy_(
                tensor, non_blocking=True
            )
            for name, tensor in outputs.items()
            if name in self._signature.outputs
        }
        self._stream.synchronize()
        batch.infer_end_ns = monotonic_ns()
        arrays = {name: self._to_array(self._signature.outputs[name], copies[name]) for name in self._signature.outputs}
        return share_out(requests, arrays, self._signature)

    def _upload(self, requests: Sequence[InferRequest], name: str, dtype: Any) -> Any:
        """Start the way of an input's rows to the GPU, from where they lie or, small ones, joined in pinned memory."""
        if name not in requests[0].inputs:
            raise Internal(f"model '{self._signature.model_name}' cannot run without input '{name}'")
        arrays = arrays_of(requests, name)
        shape = joined_shape(arrays)
        if is_worth_fetching(arrays):
            tensor = self._torch.empty(shape, dtype=dtype, device=self._device)
            device_id, stream = self._device.index, self._stream.cuda_stream
            start_fetching(arrays, tensor.data_ptr(), device_id, stream, pins=self._pin_inputs)
            return tensor
        pinned = self._torch.empty(shape, dtype=dtype, pin_memory=self._pin_inputs)
        concatenate(requests, name, _bits(self._torch, pinned).view(arrays[0].dtype))
        return pinned.to(self._device, non_blocking=True)

    def _allocate(self, name: str, dtype: Any) -> Any:
        shape = tuple(self._context.get_tensor_shape(name))
        if any(size < 0 for size in shape):
            raise Internal(
                f"output '{name}' of model '{self._signature.model_name}' has a shape known only after the run"
            )
        count = math.prod(shape)
        memory = self._torch.empty(max(1, count), dtype=dtype, device=self._device)  # TensorRT takes no null address
        self._context.set_tensor_address(name, memory.data_ptr())
        return memory[:count].view(shape)

    def _to_array(self, spec: TensorSpec, tensor: Any) -> Array:
        array: Array = _bits(self._torch, tensor)
        return array.view(np.uint16) if spec.datatype.name == "BF16" else array


def _load_plugins(package: ModelPackage) -> None:
    """Load the libraries whose layers engines may have; once in a process, whoever asks."""
    for library in filter(None, package.backend_settings.get(_PLUGINS, "").split(";")):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            raise ModelLoadError(f"unable to load plugin library '{library}': {error}") from error


def _engine(tensorrt: Any, logger: Any, package: ModelPackage, path: str) -> Any:
    runtime = tensorrt.Runtime(logger)
    # A version-compatible engine brings code of its own for the CPU, which the server must be told to run.
    runtime.engine_host_code_allowed = package.backend_settings.get(_VERSION_COMPATIBLE, "").lower() in ("true", "1")
    with open(path, "rb") as file:
        engine = runtime.deserialize_cuda_engine(file.read())
    if engine is None:
        shown = os.path.relpath(path, os.path.dirname(package.model_path))
        raise ModelLoadError(
            f"'{shown}' cannot be loaded by TensorRT {tensorrt.__version__}: an engine runs on the version "
            "and the kind of GPU that it was built for; the log has TensorRT's own message"
        )
    return engine


def _profile(package: ModelPackage, spec: InstanceSpec, engine: Any) -> int:
    """Return the optimization profile that the instance's group names, 0 without one."""
    group = group_of(package.config, spec.name)
    if group is None or not group.profile:
        return 0
    text = group.profile[0]
    if not text.isdecimal() or int(text) >= engine.num_optimization_profiles:
        raise ModelLoadError(
            f"model instance '{spec.name}' asks for optimization profile '{text}', the engine has "
            f"{engine.num_optimization_profiles}"
        )
    return int(text)


def _bindings(tensorrt: Any, torch: Any, engine: Any, signature: Signature) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the torch types of the engine's inputs and outputs, checked against the configuration."""
    torch_types = {
        tensorrt.DataType.FLOAT: (torch.float32, "FP32"),
        tensorrt.DataType.HALF: (torch.float16, "FP16"),
        tensorrt.DataType.BF16: (torch.bfloat16, "BF16"),
        tensorrt.DataType.INT64: (torch.int64, "INT64"),
        tensorrt.DataType.INT32: (torch.int32, "INT32"),
        tensorrt.DataType.INT8: (torch.int8, "INT8"),
        tensorrt.DataType.UINT8: (torch.uint8, "UINT8"),
        tensorrt.DataType.BOOL: (torch.bool, "BOOL"),
    }
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT
        specs, kind = (signature.inputs, "input") if is_input else (signature.outputs, "output")
        if engine.is_shape_inference_io(name):
            raise ModelLoadError(f"model '{signature.model_name}': shape tensor '{name}' is not supported")
        if engine.get_tensor_format(name) != tensorrt.TensorFormat.LINEAR:
            raise ModelLoadError(
                f"model '{signature.model_name}': {kind} '{name}' is not linear in memory "
                f"({engine.get_tensor_format_desc(name)}); build the engine with the format 'chw' for it"
            )
        if engine.get_tensor_dtype(name) not in torch_types:
            raise ModelLoadError(f"model '{signature.model_name}': {kind} '{name}' has a type that cannot be sent")
        dtype, datatype = torch_types[engine.get_tensor_dtype(name)]
        (inputs if is_input else outputs)[name] = dtype
        if name in specs and specs[name].datatype.name != datatype:
            raise ModelLoadError(
                f"unable to load model '{signature.model_name}', configuration expects datatype "
                f"{specs[name].datatype.config_name} for {kind} '{name}', model provides TYPE_{datatype}"
            )
        if is_input and name not in specs:
            raise ModelLoadError(f"model '{signature.model_name}' has input '{name}', which is not configured")
    for specs, found, kind in ((signature.inputs, inputs, "input"), (signature.outputs, outputs, "output")):
        unknown = [name for name in specs if name not in found]
        if unknown:
            allowed = ", ".join(found)
            raise ModelLoadError(f"unexpected inference {kind} '{unknown[0]}', allowed {kind}s are: {allowed}")
    return inputs, outputs


def _bits(torch: Any, tensor: Any) -> Array:
    """Return a host tensor's memory as an array; BF16 as int16."""
    array: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
