import importlib

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import BACKENDS, BackendTraits, platform_backend, traits_of


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_every_backend_is_loaded_by_a_class_or_says_what_to_do_instead(backend: BackendTraits) -> None:
    assert bool(backend.implementation) != bool(backend.instead)
    if backend.implementation:
        module, _, name = backend.implementation.partition(":")
        assert callable(getattr(importlib.import_module(module), name).load)


@pytest.mark.parametrize(
    ("platform", "backend"),
    [
        ("tensorrt_plan", "tensorrt"),
        ("onnxruntime_onnx", "onnxruntime"),
        ("pytorch_libtorch", "pytorch"),
        ("torch_aoti", "pytorch"),
        ("tensorflow_graphdef", "tensorflow"),
        ("mine", None),
        ("", None),
    ],
)
def test_a_platform_tells_its_backend(platform: str, backend: str | None) -> None:
    assert platform_backend(platform) == backend


def test_an_unknown_backend_has_no_implementation() -> None:
    assert not traits_of(ModelConfig(backend="mine")).implementation


@pytest.mark.parametrize("backend", ["mine", "pytorch"])
def test_a_python_based_backend_is_what_the_python_backend_is(backend: str) -> None:
    assert traits_of(ModelConfig(backend=backend, runtime="model.py")) is BACKENDS["python"]
