"""The ONNX Runtime backend: one session per device, shared by all instances there."""

import ctypes
import importlib.metadata
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.available_cores import available_cores
from deployments.backends.backend import Batch, ModelInstance, ModelLoadError
from deployments.backends.compute_capability import file_for
from deployments.backends.device_inputs import DeviceInputs, DeviceRows
from deployments.backends.device_session import DeviceSession, readable
from deployments.backends.gpu_fault import internal_error
from deployments.backends.onnxruntime_options import (
    CPU,
    CUDA,
    OPENVINO,
    chooses_threads,
    providers,
    run_options,
    session_options,
)
from deployments.backends.ragged import RaggedTensors
from deployments.backends.row_batch import row_faults, to_client_shape
from deployments.backends.row_split import LARGEST_WEIGHTS_BYTES, RowSplit
from deployments.backends.sized_sessions import SizedSessions
from deployments.core.clock import Clock
from protocol.errors import Internal, InvalidArgument, ServingError
from protocol.infer import Array, InferRequest, InferResponse
from protocol.signature import Signature
from repository_loader.filled_batches import batch_sizes, may_fill, model_file, weights_bytes
from repository_loader.onnx_graph import GraphTensor, OnnxGraph
from repository_loader.onnx_signature import check_signature
from repository_loader.package import InstanceSpec, ModelPackage

_DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
    "tensor(bfloat16)": "TYPE_BF16",
}
_FIXES = {
    CUDA: "; install its libraries with: pip install 'eagleray[cuda]'",
    OPENVINO: "; leave out execution accelerator 'openvino', or install onnxruntime-openvino in place of onnxruntime",
}
"""What to do where a provider is not available."""
_RUNTIME_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_BOUND_RUN_ERROR = "Error in execution: "
"""What a run with inputs of a device begins its errors with, in place of a code."""
_OF_INPUTS = re.compile("Got invalid dimensions for input|Invalid rank for input|Unexpected input data type")
_ONNX_BFLOAT16 = 16
_CHOICES_KEPT = 64
_MAX_PADDED_BYTES = 1 << 20
_MAX_PADDED_TIMES = 4
"""How much strings that are not UTF-8 may take when each is as long as the longest: so much, and times their bytes."""


class OnnxRuntimeBackend:
    """Loads ONNX files; the framework is imported with the first of them."""

    def __init__(self, clock: Clock | None = None) -> None:
        del clock  # every batch is answered when `execute` returns

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Open the model once per device and return an instance for each spec; `Backend.load`."""
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # which it reads when it is imported
        import onnxruntime

        if specs and specs[0].kind == "GPU":
            _check_distributions()
        models: dict[tuple[str, int], OnnxModel] = {}
        for spec in specs:
            if (spec.kind, spec.device) not in models:
                models[spec.kind, spec.device] = OnnxModel(package, spec, onnxruntime)
        return [OnnxRuntimeInstance(spec.name, models[spec.kind, spec.device]) for spec in specs]


class OnnxRuntimeInstance:
    """A turn at the shared session, which may run on several threads at once."""

    __slots__ = ("_model", "execute", "may_run_inline", "name", "on_gpu")

    def __init__(self, name: str, model: "OnnxModel") -> None:
        self.name = name
        self.may_run_inline = not model.opens_sessions
        self.on_gpu = model.on_gpu
        self._model: OnnxModel | None = model
        self.execute = model.execute

    def filled(self, rows: int) -> int:
        """Return how many rows a batch of so many runs as."""
        return rows if self._model is None else self._model.filled(rows)

    def close(self) -> None:
        """Let go of the session; it is freed with its last instance."""
        self._model = None
        del self.execute


class OnnxModel:
    """A session, and how requests become its feeds and its outputs responses."""

    def __init__(self, package: ModelPackage, spec: InstanceSpec, runtime: Any) -> None:
        config = package.config
        signature = Signature.for_backend(config)
        session = _open(runtime, package, spec)
        self._signature = signature
        self.on_gpu = spec.kind == "GPU"
        self._runtime = runtime
        self._run_options = run_options(runtime, config)
        self._batching = signature.max_batch_size > 0
        self._output_names = list(signature.outputs)
        self._choices: dict[tuple[str, ...], list[str]] = {}
        self._ragged = RaggedTensors(config, signature)
        types = {name: spec.datatype.name for name, spec in (signature.inputs | signature.outputs).items()}
        self._texts = {name for name, datatype in types.items() if datatype == "BYTES"}
        self._brain_floats = {name for name, datatype in types.items() if datatype == "BF16"}
        self._plain_feed = not self._ragged.names and not self._ragged.targets and not self._texts
        unshaped = {node.name for node in session.get_outputs() if not node.shape}
        self._reshaped = {
            name: spec
            for name, spec in signature.outputs.items()
            if (spec.reshaped or name in unshaped) and name not in self._ragged.sources
        }
        self._plain_outputs = not self._reshaped and not self._texts
        by_rows = self._batching and not self._ragged.names and not self._ragged.targets and not self._brain_floats
        self._device_inputs: DeviceInputs | None = None
        if spec.kind == "GPU" and not self._brain_floats and not self._texts:  # which cannot be bound
            pins = config.optimization.input_pinned_memory.enable
            self._device_inputs = DeviceInputs(spec.device, pins=pins)
            session = DeviceSession(session, spec.device)
        self._session: Any = session
        self._row_split: RowSplit | None = None
        self._sized: SizedSessions | None = None
        if by_rows:
            self._plan_sessions(package, spec)

    def _plan_sessions(self, package: ModelPackage, spec: InstanceSpec) -> None:
        """Have further sessions where batches are faster for them: one for each size, or for parts of their rows."""
        config, runtime = package.config, self._runtime
        if self._device_inputs is not None and may_fill(config, file_for(package, spec)):
            sizes = batch_sizes(config, file_for(package, spec))
            self._sized = SizedSessions(
                config.name, self._session, lambda: DeviceSession(_open(runtime, package, spec), spec.device), sizes
            )
            self._session = None  # which may go before the others
        elif _may_split(package, spec):
            self._row_split = RowSplit(
                config.name, self._session, lambda: _open(runtime, package, spec, thread_count=1), available_cores()
            )

    @property
    def opens_sessions(self) -> bool:
        """Whether any batch may have to wait for another session, however quick those before it were."""
        return self._sized is not None

    def filled(self, rows: int) -> int:
        """Return how many rows a batch of so many runs as."""
        return rows if self._sized is None else self._sized.size_of(rows)

    def execute(self, batch: Batch) -> None:
        """Run the batch as one call of the session; `ModelInstance.execute`."""
        requests = batch.requests
        names = self._names(requests)
        size = self.filled(batch.rows)
        try:
            is_feed = len(requests) == 1 and self._plain_feed and self._device_inputs is None
            feed: Mapping[str, Any] = requests[0].inputs if is_feed else self._gather(requests, size - batch.rows)
        except UnicodeDecodeError as error:
            batch.infer_start_ns = time.monotonic_ns()
            batch.results = self._run_alone(requests, error)
            return
        batch.infer_start_ns = time.monotonic_ns()
        try:
            if self._sized is not None:
                arrays = self._sized.run(names, feed, batch.rows, size, self._run_options)
            elif self._row_split is not None:
                arrays = self._row_split.run(names, feed, batch.rows, self._run_options)
            else:
                arrays = self._run(names, feed)
        except UnicodeDecodeError as error:
            batch.results = self._run_alone(requests, error)
            return
        except Exception as error:
            raise _told(error, on_gpu=self.on_gpu) from error
        batch.infer_end_ns = time.monotonic_ns()
        if not self._plain_outputs:
            arrays = [self._to_client(name, array) for name, array in zip(names, arrays, strict=True)]
        batch.results = self._split(batch, names, arrays)

    def _names(self, requests: list[InferRequest]) -> list[str]:
        """Return the outputs to fetch: the requested ones if all requests agree on them, else all."""
        chosen = requests[0].outputs
        for request in requests:
            if request.outputs != chosen:
                return self._output_names
        if chosen is None:
            return self._output_names
        names = self._choices.get(chosen)
        if names is None:
            if len(self._choices) >= _CHOICES_KEPT:
                self._choices.clear()
            names = self._choices[chosen] = [name for name in self._output_names if name in chosen]
        return names

    def _gather(self, requests: list[InferRequest], missing_rows: int) -> dict[str, Array | DeviceRows]:
        """Join the requests' inputs along the batch dimension, ragged ones flat, one after the other.

        The last row takes the place of those that are missing.

        Raises:
            InvalidArgument: ONNX Runtime cannot take the strings of the only request.
            UnicodeDecodeError: a string of one of several requests is not UTF-8.
        """
        feed: dict[str, Array | DeviceRows] = {}
        for name in requests[0].inputs:
            arrays = [request.inputs[name] for request in requests]
            if name in self._ragged.names:
                arrays = [array.reshape(-1) for array in arrays]
            elif self._device_inputs is not None:
                feed[name] = self._device_inputs.join(name, arrays, missing_rows)
                continue
            joined = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
            feed[name] = self._strings(name, joined, len(requests)) if name in self._texts else joined
        feed.update(self._ragged.batch_inputs(requests))
        return feed

    def _strings(self, name: str, joined: Array, request_count: int) -> Array:
        try:
            return _to_texts(joined)
        except UnicodeDecodeError:
            if request_count > 1:
                raise
            return _to_fixed_width(name, joined)

    def _run(self, names: list[str], feed: Mapping[str, Any]) -> list[Array]:
        if not self._brain_floats:
            outputs: list[Array] = self._session.run(names, feed, self._run_options)
            return outputs
        values = {name: self._to_value(name, array) for name, array in feed.items()}
        results = self._session.run_with_ort_values(names, values, self._run_options)
        return [_from_value(value) for value in results]

    def _run_alone(self, requests: list[InferRequest], error: UnicodeDecodeError) -> list[InferResponse | ServingError]:
        """Answer one by one when a text is not UTF-8, so that others neither fail nor are read otherwise for it."""
        if len(requests) == 1:
            return [InvalidArgument(f"an output of type BYTES is not valid UTF-8: {error.reason}")]
        results: list[InferResponse | ServingError] = []
        for request in requests:
            alone = Batch([request], request.rows)
            try:
                self.execute(alone)
                results += alone.results
            except ServingError as failure:
                results.append(failure)
        return results

    def _to_client(self, name: str, array: Array) -> Array:
        if name in self._texts:
            array = _to_bytes(array)
        spec = self._reshaped.get(name)
        if spec is not None and spec.reshaped:
            return to_client_shape(array, spec, self._signature)
        if spec is None or array.ndim or self._batching:
            return array
        return array.reshape((1,) * len(spec.dims))

    def _split(self, batch: Batch, names: list[str], arrays: list[Array]) -> list[InferResponse | ServingError]:
        if not self._batching:
            return self._cut(batch.requests, names, arrays)
        rows, sources = (batch.rows,), self._ragged.sources
        odd = [
            (name, array)
            for name, array in zip(names, arrays, strict=True)
            if array.shape[:1] != rows and name not in sources
        ]
        faults = row_faults(odd, batch.requests) if odd else {}
        results = self._cut(batch.requests, names, arrays)
        for place, fault in faults.items():
            results[place] = fault
        return results

    def _cut(
        self, requests: list[InferRequest], names: list[str], arrays: list[Array]
    ) -> list[InferResponse | ServingError]:
        if self._ragged.sources:
            return self._scatter(requests, names, arrays)
        if len(requests) == 1:
            return [InferResponse(dict(zip(names, arrays, strict=True)))]
        if not self._batching:
            raise Internal(f"{len(requests)} requests in a batch of a model that does not support batching")
        results: list[InferResponse | ServingError] = []
        start = 0
        if len(arrays) == 1:
            name, array = names[0], arrays[0]
            for request in requests:
                end = start + request.rows
                results.append(InferResponse({name: array[start:end]}))
                start = end
            return results
        pairs = list(zip(names, arrays, strict=True))
        for request in requests:
            end = start + request.rows
            wanted = request.outputs or names
            results.append(InferResponse({name: array[start:end] for name, array in pairs if name in wanted}))
            start = end
        return results

    def _scatter(
        self, requests: list[InferRequest], names: list[str], arrays: list[Array]
    ) -> list[InferResponse | ServingError]:
        """Split a ragged batch: scattered outputs by the shapes of their source input, others by rows."""
        parts = {}
        ends = np.cumsum([request.rows for request in requests])[:-1]
        for name, array in zip(names, arrays, strict=True):
            cut = name in self._ragged.sources
            parts[name] = self._ragged.scatter(name, array, requests) if cut else np.split(array, ends)
        return [
            InferResponse({name: parts[name][index] for name in names if name in (request.outputs or names)})
            for index, request in enumerate(requests)
        ]

    def _to_value(self, name: str, array: Array) -> Any:
        make = self._runtime.OrtValue
        array = readable(array) if self.on_gpu else np.ascontiguousarray(array)
        if name in self._brain_floats:
            return make.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BFLOAT16)
        return make.ortvalue_from_numpy(array)


def _may_split(package: ModelPackage, spec: InstanceSpec) -> bool:
    """Whether rows may run in parts: on the CPU, with small weights, and where nobody has said how many threads run.

    `dynamic_batching` says that rows do not depend on each other.
    """
    if not package.config.HasField("dynamic_batching"):
        return False
    if available_cores() < 2 or providers(package.config, spec) != [(CPU, {})] or chooses_threads(package):
        return False
    return weights_bytes(file_for(package, spec)) <= LARGEST_WEIGHTS_BYTES


def _open(runtime: Any, package: ModelPackage, spec: InstanceSpec, thread_count: int = 0) -> Any:
    """Open a session on the spec's device, and make sure that it is there; 0 threads are as many as configured."""
    config = package.config
    path = model_file(file_for(package, spec))
    asked = providers(config, spec)
    missing = [name for name, _ in asked if name not in runtime.get_available_providers()]
    if missing:
        raise _unavailable(config.name, missing[0], runtime.get_available_providers())
    if spec.kind == "GPU" and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    options = session_options(runtime, package)
    options.intra_op_num_threads = thread_count or options.intra_op_num_threads
    try:
        session = runtime.InferenceSession(path, options, asked, enable_fallback=0)
    except Exception as error:
        raise load_error(error) from error
    given = session.get_providers()
    for (name, _), got in zip(asked, given, strict=False):
        if name != got:
            raise _unavailable(config.name, name, given)
    for fault in check_signature(config, graph_of(session)):
        raise ModelLoadError(fault.message)
    return session


def load_error(error: Exception) -> ModelLoadError:
    """Return why ONNX Runtime did not open a file, as Triton words it."""
    return ModelLoadError(_told(error, on_gpu=False).message.rstrip())


def graph_of(session: Any) -> OnnxGraph:
    """Return the graph as ONNX Runtime sees it, which does not tell a scalar from a tensor without a shape.

    A type that the protocol cannot carry keeps its own name.
    """

    def tensors(nodes: Any) -> tuple[GraphTensor, ...]:
        return tuple(
            GraphTensor(
                node.name,
                _DATA_TYPES.get(node.type, node.type),
                tuple(dim if isinstance(dim, int) else -1 for dim in node.shape),
                has_shape=bool(node.shape),
            )
            for node in nodes
        )

    optional = tensors(session.get_overridable_initializers())
    return OnnxGraph(tensors(session.get_inputs()), tensors(session.get_outputs()), optional, ())


def _unavailable(model: str, provider: str, given: Sequence[str]) -> ModelLoadError:
    has = ", ".join(given) or CPU
    fix = _FIXES.get(provider, "")
    return ModelLoadError(f"unable to load model '{model}', {provider} is not available (ONNX Runtime has {has}){fix}")


def _check_distributions() -> None:
    """Refuse a GPU when both distributions are installed, since the later one has overwritten files of the other.

    Raises:
        ModelLoadError: with the line that puts it right.
    """
    if all(_is_installed(name) for name in ("onnxruntime", "onnxruntime-gpu")):
        raise ModelLoadError(
            "both 'onnxruntime' and 'onnxruntime-gpu' are installed and overwrite each other; run: "
            "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
        )


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _told(error: Exception, *, on_gpu: bool) -> Internal:
    """Return an error of ONNX Runtime as Triton words it; on a CPU it is never a GPU's, whatever a client has sent."""
    if isinstance(error, Internal):
        return error
    text = str(error).removeprefix(_BOUND_RUN_ERROR)
    match = _RUNTIME_ERROR.match(text)
    code, words = match.groups() if match is not None else ("2" if _OF_INPUTS.match(text) else "1", text)
    message = f"onnx runtime error {code}: {words}"
    return internal_error(message, str(error)) if on_gpu else Internal(message)


def _to_texts(array: Array) -> Array:
    """Return BYTES as the `str` objects that ONNX Runtime takes.

    Raises:
        UnicodeDecodeError: an element is not UTF-8.
    """
    elements = array.reshape(-1).tolist()
    texts = np.empty(len(elements), object)
    texts[:] = [element.decode() if isinstance(element, bytes) else str(element) for element in elements]
    return texts.reshape(array.shape)


def _to_fixed_width(name: str, array: Array) -> Array:
    """Return BYTES that are not UTF-8 as ONNX Runtime takes them, each element as long as the longest.

    Raises:
        InvalidArgument: most of it would be padding, or an element would end for ONNX Runtime before it does.
    """
    elements = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
    lengths = [len(element) for element in elements]
    padded = len(elements) * max(lengths)
    if padded > _MAX_PADDED_BYTES + _MAX_PADDED_TIMES * sum(lengths):
        raise InvalidArgument(f"input '{name}' is not valid UTF-8, and its elements differ too much in length")
    if any(b"\0" in element for element in elements):
        raise InvalidArgument(f"input '{name}' is not valid UTF-8, and has an element with a zero byte")
    return np.array(elements, dtype="S").reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    elements = array.reshape(-1).tolist()
    encoded = np.empty(len(elements), object)
    encoded[:] = [element.encode() if isinstance(element, str) else bytes(element) for element in elements]
    return encoded.reshape(array.shape)


def _from_value(value: Any) -> Array:
    """Return an OrtValue's array; BF16, which has no NumPy type, as its raw 16 bits."""
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    if value.device_name() != "cpu":
        raise Internal(f"BF16 outputs on device '{value.device_name()}' are not supported")
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape)))
    return np.frombuffer(raw, np.uint16).reshape(shape)
