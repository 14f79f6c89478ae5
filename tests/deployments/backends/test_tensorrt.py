"""What can be said of the TensorRT backend without a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

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
