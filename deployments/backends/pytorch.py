"""The PyTorch backend: TorchScript modules (`model.pt`) and AOTInductor packages (`model.pt2`)."""

import importlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic_ns
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelOptimizationPolicy

from deployments.available_cores import available_cores
from deployments.backends import torch_naming
from deployments.backends.backend import Batch, ModelInstance, ModelLoadError
from deployments.backends.compute_capability import file_for
from deployments.backends.device_inputs import is_worth_fetching, start_fetching
from deployments.backends.gpu_fault import GpuFault
from deployments.backends.ragged import RaggedTensors
from deployments.backends.row_batch import arrays_of, concatenate, joined_shape, runs, share_out
from deployments.backends.torch_package import OtherSizeError, load_package
from deployments.core.clock import Clock
from deployments.log.line_format import about_requests
from protocol.datatypes import BY_NAME
from protocol.errors import Internal, InvalidArgument, ServingError
from protocol.infer import Array, InferRequest, InferResponse
from protocol.signature import Signature, TensorSpec
from repository_loader.loadability import check_model_file
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.parameters import read_boolean, read_integer

_LOG = logging.getLogger(__name__)

_CONFIG_NAMES = {f"torch.{row.numpy}": row.config_name for row in BY_NAME.values() if row.name not in ("BYTES", "BF16")}
_CONFIG_NAMES["torch.bfloat16"] = "TYPE_BF16"
"""Of what `str` makes of PyTorch's datatypes."""
_CUDA_ERROR = re.compile(r"^[ \t]*(?:\w+: )?CUDA error: .*", re.MULTILINE)
_TRACEBACK_END = "<--- HERE\n"
_RAISED = re.compile(r"^[A-Za-z_][\w.]*: .*", re.MULTILINE)
_FIRST_LINE = re.compile(r"\S.*")


class PyTorchBackend:
    """Loads PyTorch models; instances on one device share parameters, and the whole module if they are told to.

    What a module keeps from one run to the next, as for sequences, is then its instance's own.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        del clock  # every batch is answered when `execute` returns

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Load a module for each instance, or one for each device: of packages, and with `ENABLE_WEIGHT_SHARING`.

        Raises:
            ImportError: PyTorch is not installed.
            ModelLoadError: the file is missing or is no TorchScript, or a parameter is wrong.
        """
        import torch

        options = _Options(package)
        _set_threads(torch, options, len(specs))
        modules: dict[Any, _Module] = {}
        instances: list[ModelInstance] = []
        for spec in specs:
            device = _device(torch, spec)
            path = file_for(package, spec)
            module = first = modules.get(device)
            if module is None or not (options.weight_sharing or path.endswith(".pt2")):
                module = modules[device] = _load_module(torch, package, path, device)
                if first is not None:
                    _share_parameters(module.call, first.call)
            instances.append(PyTorchInstance(torch, spec, package.config, module, device, options))
        return instances


class PyTorchInstance:
    """Runs batches through a module, whose `forward` releases the GIL."""

    def __init__(
        self, torch: Any, spec: InstanceSpec, config: ModelConfig, module: "_Module", device: Any, options: "_Options"
    ) -> None:
        signature = Signature.for_backend(config)
        self.name = spec.name
        self.may_run_inline = True
        self._torch = torch
        self._signature = signature
        self._module: _Module | None = module
        self._device = device
        self.on_gpu = device is not None and device.type == "cuda"
        high = config.optimization.priority == ModelOptimizationPolicy.PRIORITY_MAX
        self._stream = torch.cuda.Stream(device, priority=-1 if high else 0) if self.on_gpu else None
        self._pin = bool(config.optimization.input_pinned_memory.enable)
        self._ragged = RaggedTensors(config, signature)
        self._options = options
        self._mode = (
            self._special_mode
            if self._stream is not None or options.disable_optimized_execution
            else options.mode(torch)
        )
        self._of_strings = [spec.datatype.name for spec in signature.outputs.values()] == ["BYTES"]

    def execute(self, batch: Batch) -> None:
        """Run the requests as one batch; an exception of the module fails all of them.

        Where one has BYTES that are not UTF-8, or all are of another size than a package takes, each runs alone.
        """
        results: list[InferResponse | ServingError] = []
        if self._device is None or self.on_gpu:  # of the whole process, so that each batch sets it, as in Triton
            self._torch.backends.cudnn.enabled = not self._options.disable_cudnn
        with self._mode():
            for requests in runs(batch.requests, self._signature):
                results.extend(self._run(batch, requests))
        batch.results = results

    def close(self) -> None:
        """Let go of the module; its memory on a GPU goes back with the last instance, for other processes to use."""
        self._module = None
        if self.on_gpu:
            with suppress(RuntimeError):  # of a GPU that is lost
                self._torch.cuda.empty_cache()

    def _run(self, batch: Batch, requests: Sequence[InferRequest]) -> Sequence[InferResponse | ServingError]:
        try:
            return self._forward(batch, requests)
        except (_NotUtf8, OtherSizeError) as error:
            self._end_fetches()
            if len(requests) == 1:
                return [InvalidArgument(str(error))]
            return [result for request in requests for result in self._run(batch, [request])]
        except ServingError:
            self._end_fetches()
            raise
        except Exception as error:
            whose = about_requests(self._signature.model_name, None, requests)
            _LOG.exception("model instance '%s' failed", self.name, extra=whose)
            kind = GpuFault if self._gpu_is_lost() else Internal
            raise kind(f"PyTorch execute failure: {_first_words(error)}") from None

    def _forward(self, batch: Batch, requests: Sequence[InferRequest]) -> list[InferResponse | ServingError]:
        torch, module = self._torch, self._module
        assert module is not None
        sent = requests[0].inputs
        specs = self._signature.inputs.values()
        values = {spec.name: self._input(requests, spec) for spec in specs if spec.name in sent}
        for name, array in self._ragged.batch_inputs(requests):
            values[name] = self._on_device(torch.from_numpy(array))
        arguments = module.place(values)
        if not batch.infer_start_ns:
            batch.infer_start_ns = monotonic_ns()
        returned = module.call(*arguments)
        if self._stream is not None:
            self._stream.synchronize()
        batch.infer_end_ns = monotonic_ns()
        named = torch_naming.results(returned, module.places, self._of_strings)
        outputs = {name: self._output(self._signature.outputs[name], value) for name, value in named.items()}
        if self.on_gpu and self._options.cache_cleaning:
            self._torch.cuda.empty_cache()
        return self._share_out(requests, outputs)

    def _end_fetches(self) -> None:
        """Wait for inputs that are on their way from the memory of requests which will be answered without a run."""
        if self._stream is not None:
            with suppress(RuntimeError):  # of a GPU that is lost
                self._stream.synchronize()

    def _gpu_is_lost(self) -> bool:
        """Whether a GPU of the instance has an error that stays; the text of the exception may be a client's."""
        cuda = self._torch.cuda
        places_itself = self._device is None
        if not (self.on_gpu or (places_itself and cuda.is_initialized())):
            return False
        try:
            for device in range(cuda.device_count()) if places_itself else [self._device]:
                cuda.synchronize(device)
        except Exception:
            return True
        return False

    def _share_out(
        self, requests: Sequence[InferRequest], outputs: dict[str, Array]
    ) -> list[InferResponse | ServingError]:
        sources = self._ragged.sources
        plain = {name: array for name, array in outputs.items() if name not in sources}
        responses = share_out(requests, plain, self._signature)
        for name in sources:
            parts = self._ragged.scatter(name, outputs[name], requests)
            for request, response, part in zip(requests, responses, parts, strict=True):
                if isinstance(response, InferResponse) and (request.outputs is None or name in request.outputs):
                    response.outputs[name] = part
        return responses

    def _special_mode(self) -> ExitStack:
        """Return the context in which the module runs when that is more than no gradients."""
        torch, options = self._torch, self._options
        stack = ExitStack()
        stack.enter_context(options.mode(torch)())
        if self._stream is not None:
            stack.enter_context(torch.cuda.stream(self._stream))
        if options.disable_optimized_execution:
            stack.enter_context(torch.jit.optimized_execution(False))
        return stack

    def _input(self, requests: Sequence[InferRequest], spec: TensorSpec) -> Any:
        torch = self._torch
        if spec.name in self._ragged.names:
            flat = np.concatenate([request.inputs[spec.name].reshape(-1) for request in requests])
            if spec.datatype.name == "BYTES":
                return _strings(flat, spec.name)
            tensor = self._on_device(torch.from_numpy(flat.view(np.int16) if spec.datatype.name == "BF16" else flat))
            return tensor.view(torch.bfloat16) if spec.datatype.name == "BF16" else tensor
        if spec.datatype.name == "BYTES":
            return _strings(concatenate(requests, spec.name), spec.name)
        if self.on_gpu:
            return self._from_host(requests, spec)
        array = concatenate(requests, spec.name)
        if not array.flags.behaved:
            array = array.copy()  # PyTorch knows only writable and aligned tensors, and a module may work in place
        tensor = torch.from_numpy(array.view(np.int16) if spec.datatype.name == "BF16" else array)
        return tensor.view(torch.bfloat16) if spec.datatype.name == "BF16" else tensor

    def _on_device(self, tensor: Any) -> Any:
        return tensor.to(self._device) if self.on_gpu else tensor

    def _from_host(self, requests: Sequence[InferRequest], spec: TensorSpec) -> Any:
        """Return rows that are on their way to the GPU, from where they lie or, small ones, joined in pinned memory."""
        torch, stream = self._torch, self._stream
        assert stream is not None
        arrays = arrays_of(requests, spec.name)
        shape, datatype = joined_shape(arrays), arrays[0].dtype
        bfloat16 = spec.datatype.name == "BF16"
        dtype = torch.int16 if bfloat16 else torch.from_numpy(np.empty(0, datatype)).dtype
        if is_worth_fetching(arrays):
            tensor = torch.empty(shape, dtype=dtype, device=self._device)
            start_fetching(arrays, tensor.data_ptr(), self._device.index, stream.cuda_stream, pins=self._pin)
        else:
            pinned = torch.empty(shape, dtype=dtype, pin_memory=self._pin)
            concatenate(requests, spec.name, pinned.numpy().view(datatype))
            tensor = pinned.to(self._device, non_blocking=True)
        return tensor.view(torch.bfloat16) if bfloat16 else tensor

    def _output(self, spec: TensorSpec, value: Any) -> Array:
        torch = self._torch
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            _check_datatype(spec, "TYPE_STRING")
            return _string_array(value, spec, self._signature.max_batch_size > 0)
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument(f"output '{spec.name}' must be of type Tensor or List[str].")
        _check_datatype(spec, _CONFIG_NAMES.get(str(value.dtype), "TYPE_<invalid>"))
        if not value.ndim:
            raise InvalidArgument(f"output '{spec.name}' is a scalar which is not supported.")
        # A copy, for the module may keep the tensor and write to it in its next run, while the response waits.
        tensor = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        bfloat16 = tensor.dtype == torch.bfloat16
        array: Array = tensor.view(torch.int16).numpy().view(np.uint16) if bfloat16 else tensor.numpy()
        return array


class _NotUtf8(Exception):
    """A request has a string that TorchScript does not take."""


class _Module:
    """A loaded model: how it is called, where its inputs go, and which of its results each output is."""

    __slots__ = ("call", "place", "places")

    def __init__(
        self, call: Callable[..., Any], place: Callable[[Mapping[str, Any]], list[Any]], places: Mapping[str, int]
    ) -> None:
        self.call = call
        self.place = place
        self.places = places


class _Options:
    """The model's parameters that this backend knows; a number of threads below 1 says nothing, as in Triton."""

    def __init__(self, package: ModelPackage) -> None:
        parameters = {key: value.string_value for key, value in package.config.parameters.items()}
        is_set = partial(read_boolean, package.name, parameters)
        self.inference_mode = is_set("INFERENCE_MODE", default=True)
        self.disable_optimized_execution = is_set("DISABLE_OPTIMIZED_EXECUTION", default=False)
        self.disable_cudnn = is_set("DISABLE_CUDNN", default=False)
        self.weight_sharing = is_set("ENABLE_WEIGHT_SHARING", default=False)
        self.cache_cleaning = is_set("ENABLE_CACHE_CLEANING", default=False)
        self.intra_op_threads = max(0, read_integer(package.name, parameters, "INTRA_OP_THREAD_COUNT"))
        self.inter_op_threads = max(0, read_integer(package.name, parameters, "INTER_OP_THREAD_COUNT"))

    def mode(self, torch: Any) -> Any:
        """Return what makes the context without gradients."""
        return torch.inference_mode if self.inference_mode else torch.no_grad


def _set_threads(torch: Any, options: _Options, instance_count: int) -> None:
    """Set what is configured; otherwise share the CPUs among the instances, each of which starts threads of its own.

    Left alone, PyTorch follows OMP_NUM_THREADS. Ray sets that to the CPUs that a replica reserves, and to 1 for a
    replica that reserves a fraction of one, as nearly all do; a larger number is what somebody has asked for.
    """
    told = os.environ.get("OMP_NUM_THREADS", "")
    count = int(told) if told.isdecimal() and int(told) > 1 else available_cores()
    torch.set_num_threads(options.intra_op_threads or max(1, count // instance_count))
    if options.inter_op_threads and options.inter_op_threads != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(options.inter_op_threads)
        except RuntimeError:
            _LOG.warning("INTER_OP_THREAD_COUNT is ignored: PyTorch already runs in this process")


def _device(torch: Any, spec: InstanceSpec) -> Any:
    """Return the device that the module is moved to, None if it places itself (KIND_MODEL)."""
    if spec.kind == "MODEL":
        return None
    if spec.kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelLoadError(f"model instance '{spec.name}' is of KIND_GPU but PyTorch finds no GPU")
    return torch.device("cuda", spec.device)


def _load_module(torch: Any, package: ModelPackage, path: str, device: Any) -> _Module:
    config = package.config
    made = [name for entry in config.batch_input for name in entry.target_name]
    signature = Signature.for_backend(config)
    names = (*signature.inputs, *made)
    try:
        if path.endswith(".pt2"):
            loaded = load_package(torch, path, device, signature, names)
            return _Module(loaded.call, loaded.place, loaded.places)
        for fault in check_model_file(config, path, None):
            raise ModelLoadError(fault.message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit as a whole
            module = _load_script(torch, package.name, path, device)
    except ModelLoadError:
        raise
    except Exception as error:
        _LOG.exception("model '%s' cannot be loaded", package.name)
        raise ModelLoadError(f"failed to load model '{package.name}': {_first_words(error)}") from None
    module.eval()
    expected = module.forward.schema.arguments[1:]
    takes_dict = [
        str(argument.type).startswith("Dict(") or str(argument.type).startswith("Dict[") for argument in expected
    ]
    controls = [control.name for control in config.sequence_batching.control_input]
    arguments = torch_naming.arguments(names, [argument.name for argument in expected], takes_dict == [True], controls)
    if not arguments.as_dict:
        _check_signature(signature, arguments, expected)
    states = [state.output_name for state in config.sequence_batching.state]
    return _Module(module, arguments.place, torch_naming.positions(tuple(signature.outputs), indexed=states))


def _load_script(torch: Any, model: str, path: str, device: Any) -> Any:
    """Load TorchScript, with the operators of torchvision where it has some: Triton's backend is linked to them.

    Raises:
        ModelLoadError: torchvision is not installed.
    """
    try:
        return torch.jit.load(path, map_location=device)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    try:
        importlib.import_module("torchvision")
    except ImportError:
        raise ModelLoadError(
            f"model '{model}' has operators of 'torchvision', which is not installed here; install it with: "
            "pip install torchvision"
        ) from None
    return torch.jit.load(path, map_location=device)


def _share_parameters(module: Any, first: Any) -> None:
    """Have a module use the memory of another's parameters; buffers and attributes, which runs may change, stay."""
    for parameter, same in zip(module.parameters(), first.parameters(), strict=True):
        parameter.data = same.data


def _check_signature(signature: Signature, arguments: torch_naming.Arguments, expected: Sequence[Any]) -> None:
    """Refuse a configuration whose inputs are not the arguments of `forward`: every request would fail."""
    given = set(arguments.positions.values())
    needed = {place for place, argument in enumerate(expected) if not argument.has_default_value()}
    if needed <= given <= set(range(len(expected))):
        return _check_types(signature, arguments, expected)
    model = signature.model_name
    if len(arguments.positions) != len(expected):
        raise ModelLoadError(
            f"unable to load model '{model}', configuration expects {len(arguments.positions)} inputs, "
            f"model provides {len(expected)}"
        )
    takes = ", ".join(argument.name for argument in expected) or "no arguments"
    raise ModelLoadError(
        f"failed to load model '{model}': forward takes {takes}; the configuration has {len(arguments.positions)} "
        f"inputs: {', '.join(arguments.positions)}"
    )


def _check_types(signature: Signature, arguments: torch_naming.Arguments, expected: Sequence[Any]) -> None:
    """Refuse arguments that are neither made of a tensor nor strings; PyTorch would take rows for items of a tuple."""
    failed = f"failed to load model '{signature.model_name}':"
    for name, place in arguments.positions.items():
        takes = str(expected[place].type)
        item = takes[len("Optional[") : -1] if takes.startswith("Optional[") else takes
        if item.startswith(("List[", "Dict", "Tuple[")) and item != "List[str]":
            raise ModelLoadError(
                f"{failed} An input of type '{takes}' was detected in the model. Only a single input of type "
                "Dict(str, Tensor) or input(s) of type Tensor are supported."
            )
        spec = signature.inputs.get(name)
        datatype = spec.datatype.name if spec else ""  # of what is made for each batch
        if (item == "List[str]") != (datatype == "BYTES") and item in ("List[str]", "Tensor"):
            raise ModelLoadError(
                f"{failed} input '{name}' is of type {datatype} in the configuration, and forward takes {takes}"
            )


def _first_words(error: Exception) -> str:
    """Return the line that says what is wrong: TorchScript puts a traceback with paths and code before it.

    Behind it are values that clients have sent and, of an error of CUDA, advice for those who write kernels.
    """
    text = str(error)
    _, traceback, behind = text.rpartition(_TRACEBACK_END)
    said = _CUDA_ERROR.search(text) or (traceback and _RAISED.search(behind)) or _FIRST_LINE.search(text)
    return said[0].strip() if said else type(error).__name__


def _strings(array: Array, name: str) -> list[str]:
    if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
        raise Internal(f"PyTorch takes one-dimensional string tensors, input '{name}' has shape {list(array.shape)}")
    try:
        return [element.decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise _NotUtf8(f"input '{name}' of type BYTES is not valid UTF-8: {error.reason}") from None


def _string_array(value: Sequence[str], spec: TensorSpec, batched: bool) -> Array:
    array = np.empty(len(value), np.object_)
    array[:] = [item.encode() for item in value]
    return array.reshape(-1, 1) if batched and len(spec.model_dims) == 1 else array


def _check_datatype(spec: TensorSpec, provided: str) -> None:
    if provided != spec.datatype.config_name:
        raise InvalidArgument(
            f"configuration expects datatype {spec.datatype.config_name} for output '{spec.name}', "
            f"model provides {provided}"
        )
