"""What can be said of the TensorRT backend without a GPU."""

import ctypes
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from deployments.backends import tensorrt
from deployments.backends.backend import Batch, ModelLoadError
from deployments.backends.gpu_fault import GpuFault
from protocol.errors import Internal
from protocol.infer import InferRequest
from protocol.signature import Signature
from repository_loader.package import InstanceSpec, ModelPackage

CONFIG = 'name: "engine" backend: "tensorrt" instance_group { name: "g" kind: KIND_GPU profile: "1" }'


def package_of(path):
    config = text_format.Parse(CONFIG, ModelConfig())
    return ModelPackage(
        "engine", 1, config, str(path / "engine"), str(path / "engine" / "1"), str(path / "engine/1/model.plan")
    )


def test_instance_takes_its_groups_profile(tmp_path):
    package = package_of(tmp_path)
    engine = SimpleNamespace(num_optimization_profiles=2)
    assert tensorrt._profile(package, InstanceSpec("g_0", "GPU", 0), engine) == 1
    assert tensorrt._profile(package, InstanceSpec("g_0_gpu1", "GPU", 1), engine) == 1
    assert tensorrt._profile(package, InstanceSpec("other_0", "GPU", 0), engine) == 0
    engine.num_optimization_profiles = 1
    with pytest.raises(ModelLoadError, match="asks for optimization profile '1', the engine has 1"):
        tensorrt._profile(package, InstanceSpec("g_0", "GPU", 0), engine)


def test_plugin_libraries_are_loaded_or_said_to_be_missing(tmp_path):
    package = replace(package_of(tmp_path), backend_settings={"plugins": "libm.so.6;libc.so.6"})
    tensorrt._load_plugins(package)
    package = replace(package, backend_settings={"plugins": f"libm.so.6;{tmp_path}/none.so"})
    with pytest.raises(ModelLoadError, match=rf"unable to load plugin library '{tmp_path}/none.so': .*No such file"):
        tensorrt._load_plugins(package)


@pytest.mark.parametrize(("settings", "allowed"), [({}, False), ({"version-compatible": "true"}, True)])
def test_code_of_a_version_compatible_engine_runs_where_the_server_says_so(tmp_path, settings, allowed):
    runtimes = []

    class Runtime(SimpleNamespace):
        def deserialize_cuda_engine(self, data):
            runtimes.append(self)
            return data

    (tmp_path / "engine" / "1").mkdir(parents=True)
    (tmp_path / "engine/1/model.plan").write_bytes(b"plan")
    package = replace(package_of(tmp_path), backend_settings=settings)
    assert (
        tensorrt._engine(SimpleNamespace(Runtime=lambda logger: Runtime()), None, package, package.file_path) == b"plan"
    )
    assert [runtime.engine_host_code_allowed for runtime in runtimes] == [allowed]


class Stream:
    """A stream on which nothing runs."""

    was_waited_for = False

    def synchronize(self):
        self.was_waited_for = True


class Failing(tensorrt.TensorRTInstance):
    """An instance whose run ends with an error."""

    def __init__(self, error):
        self.name = "engine_0"
        self._signature = Signature("engine", 1, {}, {})
        self._torch = SimpleNamespace(cuda=SimpleNamespace(stream=lambda stream: nullcontext()))
        self._stream = Stream()
        self._error = error

    def _run(self, batch, requests):
        raise self._error


@pytest.mark.parametrize(
    ("said", "kind"),
    [("CUDA error: an illegal memory access was encountered", GpuFault), ("CUDA error: invalid argument", Internal)],
)
def test_a_lost_gpu_is_told_from_other_errors(said, kind):
    with pytest.raises(Internal) as raised:
        Failing(RuntimeError(f"{said}\nmore")).execute(Batch([InferRequest({}, 1, lambda *answer: None)], 1))
    assert type(raised.value) is kind
    assert raised.value.message == f"TensorRT could not run model instance 'engine_0': {said}"


def test_nothing_is_on_its_way_from_requests_when_they_are_answered_without_a_run():
    instance = Failing(Internal("does not take shape"))
    with pytest.raises(Internal, match="does not take shape"):
        instance.execute(Batch([InferRequest({}, 1, lambda *answer: None)], 1))
    assert instance._stream.was_waited_for


class Context:
    """An execution context of an engine that returns its input, as long as every tensor lies somewhere of its own."""

    def __init__(self):
        self._shape = ()
        self._addresses = {}

    def set_input_shape(self, name, shape):
        self._shape = shape
        return True

    def get_tensor_shape(self, name):
        return self._shape

    def set_tensor_address(self, name, address):
        self._addresses[name] = address

    def infer_shapes(self):
        return []

    def execute_async_v3(self, stream):
        given, returned = self._addresses["X"], self._addresses["Y"]
        if not given or not returned or given == returned:
            return False
        ctypes.memmove(returned, given, 4 * math.prod(self._shape))
        return True


class Copying(tensorrt.TensorRTInstance):
    """An instance of that engine, with the memory of the CPU in place of a GPU's."""

    def __init__(self):
        torch = pytest.importorskip("torch")
        tensors = ModelConfig(max_batch_size=8)
        for spec in (tensors.input.add(name="X"), tensors.output.add(name="Y")):
            spec.data_type, spec.dims[:] = DataType.TYPE_FP32, [-1]
        self.name = "engine_0"
        self._signature = Signature.for_backend(tensors)
        self._torch, self._device, self._stream = torch, torch.device("cpu"), Stream()
        self._stream.cuda_stream = 2
        self._pin_inputs = self._pin_outputs = False
        self._inputs, self._outputs = {"X": torch.float32}, {"Y": torch.float32}
        self._context = Context()


@pytest.mark.parametrize("width", [0, 3])
def test_a_tensor_without_elements_has_an_address_as_well(width):
    rows = np.arange(2 * width, dtype=np.float32).reshape(2, width)
    batch = Batch([InferRequest({"X": rows}, 2, lambda *answer: None)], 2)
    [answer] = Copying()._run(batch, batch.requests)
    assert np.array_equal(answer.outputs["Y"], rows)


class Engine:
    """An engine with one input, whose rows lie in memory by its `order`."""

    num_io_tensors = 1

    def __init__(self, order):
        self._order = order

    def get_tensor_name(self, index):
        return "X"

    def get_tensor_mode(self, name):
        return "INPUT"

    def is_shape_inference_io(self, name):
        return False

    def get_tensor_format(self, name):
        return self._order

    def get_tensor_format_desc(self, name):
        return "Two wide channel vectorized row major FP16 format"

    def get_tensor_dtype(self, name):
        return "HALF"


def test_an_engine_whose_tensors_are_not_linear_in_memory_is_refused():
    types = {name: name for name in ("FLOAT", "HALF", "BF16", "INT64", "INT32", "INT8", "UINT8", "BOOL")}
    api = SimpleNamespace(
        DataType=SimpleNamespace(**types),
        TensorIOMode=SimpleNamespace(INPUT="INPUT"),
        TensorFormat=SimpleNamespace(LINEAR="LINEAR", CHW2="CHW2"),
    )
    torch = pytest.importorskip("torch")
    config = ModelConfig(name="engine")
    spec = config.input.add(name="X")
    spec.data_type, spec.dims[:] = DataType.TYPE_FP16, [3, 8, 8]
    signature = Signature.for_backend(config)
    assert tensorrt._bindings(api, torch, Engine("LINEAR"), signature) == ({"X": torch.float16}, {})
    refused = (
        r"^model 'engine': input 'X' is not linear in memory \(Two wide .*\); build the engine with the format 'chw'"
    )
    with pytest.raises(ModelLoadError, match=refused):
        tensorrt._bindings(api, torch, Engine("CHW2"), signature)
