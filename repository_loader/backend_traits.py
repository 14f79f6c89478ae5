"""What each backend is and can do here: the one table that files, completion, checks, plan and loader read.

Source: the backends' own pages, and Triton's server-side autofill for files and platforms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

PYTHON: Final = "python"
PYTHON_RUNTIME: Final = "model.py"
"""The `runtime` of models whose backend is Python code that they share."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file name that a backend opens unless the configuration names another, and the platform it stands for."""

    name: str
    platform: str = ""


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """One backend.

    Attributes:
        name: as in `backend`.
        files: default model files; the first is assumed when none is there.
        infers: whether such a file alone tells that a model is this backend's.
        implementation: `module:class` of its loader, "" for a backend of Triton's that Eagleray does not have.
        instead: what to do with a model of a backend without implementation.
        requires: what it imports, by import name, and what pip installs for that.
        kinds: instance kinds (CPU, GPU, MODEL) that it runs.
        releases_gil: whether `count` instances are threads of one process; otherwise each is a process.
        bounded: whether how long a batch takes is known from batches before it, so that it may share an event loop.
        calls_models: whether its models' code may call other models.
        cpu_count: instances of a KIND_CPU group without `count`.
        rules: the column of `field_rules` that speaks for it, "" for one of its own name.
    """

    name: str
    files: tuple[ModelFile, ...] = ()
    infers: bool = False
    implementation: str = ""
    instead: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset({"CPU", "GPU", "MODEL"})
    releases_gil: bool = False
    bounded: bool = True
    calls_models: bool = False
    cpu_count: int = 1
    rules: str = ""

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs on GPUs only."""
        return "GPU" in self.kinds and "CPU" not in self.kinds


_CONVERT = "convert the model to ONNX"


def _testing(name: str, implementation: str) -> BackendTraits:
    """Return a backend of Triton's tests: models without a file, on the CPU."""
    implementation = f"deployments.backends.testing.{implementation}"
    kinds = frozenset({"CPU"})
    return BackendTraits(name, implementation=implementation, kinds=kinds, releases_gil=True, rules=PYTHON)


BACKENDS: dict[str, BackendTraits] = {
    backend.name: backend
    for backend in (
        BackendTraits(
            "tensorrt",
            (ModelFile("model.plan", "tensorrt_plan"),),
            infers=True,
            implementation="deployments.backends.tensorrt:TensorRTBackend",
            requires={"tensorrt": "eagleray[tensorrt]", "torch": "eagleray[torch]"},
            kinds=frozenset({"GPU"}),
            releases_gil=True,
        ),
        BackendTraits(
            "onnxruntime",
            (ModelFile("model.onnx", "onnxruntime_onnx"),),
            infers=True,
            implementation="deployments.backends.onnxruntime:OnnxRuntimeBackend",
            requires={"onnxruntime": "onnxruntime"},
            kinds=frozenset({"CPU", "GPU"}),
            releases_gil=True,
            cpu_count=2,
        ),
        BackendTraits("openvino", (ModelFile("model.xml"),), infers=True, instead=_CONVERT),
        BackendTraits(
            "pytorch",
            (ModelFile("model.pt", "pytorch_libtorch"), ModelFile("model.pt2", "torch_aoti")),
            infers=True,
            implementation="deployments.backends.pytorch:PyTorchBackend",
            requires={"torch": "eagleray[torch]"},
            releases_gil=True,
        ),
        BackendTraits(
            "tensorflow",
            (
                ModelFile("model.savedmodel", "tensorflow_savedmodel"),
                ModelFile("model.graphdef", "tensorflow_graphdef"),
            ),
            infers=True,
            instead=f"{_CONVERT} (tf2onnx)",
            cpu_count=2,
        ),
        BackendTraits(
            PYTHON,
            (ModelFile("model.py"),),
            infers=True,
            implementation="deployments.backends.python.backend:PythonBackend",
            bounded=False,
            calls_models=True,
        ),
        BackendTraits("dali", (ModelFile("model.dali"),), instead="do its preprocessing in a Python model"),
        BackendTraits("vllm", (ModelFile("model.json"),), instead="call it from a Python model, or use Ray Serve LLM"),
        BackendTraits("tensorrtllm", instead="use Ray Serve LLM"),
        BackendTraits("fil", instead=f"{_CONVERT}, or run the forest in a Python model"),
        _testing("identity", "identity:IdentityBackend"),
        _testing("repeat", "repeat:RepeatBackend"),
        _testing("square", "square:SquareBackend"),
        _testing("sequence", "accumulators:SequenceBackend"),
        _testing("dyna_sequence", "accumulators:DynaSequenceBackend"),
        _testing("implicit_state", "implicit_state:ImplicitStateBackend"),
        _testing("iterative_sequence", "iterative_sequence:IterativeSequenceBackend"),
    )
}
"""Every backend that is known, in the order in which a model's files are compared with it."""

_UNKNOWN = BackendTraits("")


def traits_of(config: ModelConfig) -> BackendTraits:
    """Return what is known of a model's backend; one that nobody knows has no files and no implementation.

    A Python-based backend is what the Python backend is.
    """
    return BACKENDS.get(PYTHON if config.runtime == PYTHON_RUNTIME else config.backend, _UNKNOWN)


def platform_backend(platform: str) -> str | None:
    """Return the backend of a platform, None for a platform that is not Triton's."""
    for backend in BACKENDS.values():
        if any(file.platform == platform for file in backend.files if file.platform):
            return backend.name
    return None


def backends_here() -> str:
    """Return, for a sentence, the backends that Eagleray has, but for those of Triton's tests."""
    return _listed({backend.name for backend in BACKENDS.values() if backend.implementation and backend.files})


def platforms_here() -> str:
    """Return, for a sentence, the platforms of those backends."""
    served = (backend for backend in BACKENDS.values() if backend.implementation)
    return _listed({file.platform for backend in served for file in backend.files if file.platform} | {"ensemble"})


def _listed(names: set[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} and {last}"
