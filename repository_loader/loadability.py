"""Whether a complete configuration can be loaded here: one answer for `validate`, the plan and the loader."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository_loader.backend_traits import PYTHON, backends_here, traits_of
from repository_loader.field_check import refused_fields
from repository_loader.findings import Fault
from repository_loader.model_files import is_ensemble
from repository_loader.onnx_graph import OnnxGraph
from repository_loader.onnx_signature import check_signature
from repository_loader.parameters import unreadable_parameters
from repository_loader.testing_expectations import check_expectations

_ARCHIVE = b"PK\3\4"
_ACCELERATORS = {"gpu": ("tensorrt", "cuda", "gpu_io"), "cpu": ("openvino",)}


def check_loadable(config: ModelConfig, settings: Mapping[str, str]) -> Iterator[Fault]:
    """Yield what keeps any file from being loaded with this configuration, which has its defaults filled in.

    `settings` are those of its backend that the server was given.
    """
    missing = [*check_backend(config)]
    yield from missing
    if missing:
        return
    yield from refused_fields(config)
    yield from unreadable_parameters(config, settings)
    yield from check_expectations(config)
    if not is_ensemble(config):
        yield from _check_kinds(config)
        yield from _check_accelerators(config)


def check_backend(config: ModelConfig) -> Iterator[Fault]:
    """Yield that the backend, which has been chosen, is not there: no file and no other field would help."""
    backend = traits_of(config)
    if not is_ensemble(config) and not backend.implementation:
        yield Fault("backend", _no_backend(config, backend.instead))


def check_model_file(config: ModelConfig, file_path: str, graph: OnnxGraph | None) -> Iterator[Fault]:
    """Yield what is wrong with a model file that is there; `graph` is what is in it if it is ONNX."""
    field = "default_model_filename"
    backend = traits_of(config).name
    if backend == PYTHON and not file_path.endswith(".py"):
        shown = os.path.join(config.name, *file_path.split(os.sep)[-2:])
        yield Fault(field, f"the model name in 'default_model_filename' must end with '.py', got '{shown}'")
    elif backend == "pytorch" and _is_cut_off(file_path):
        shown = os.path.join(config.name, *file_path.split(os.sep)[-2:])
        text = f"'{shown}' is cut off or damaged: it begins as an archive, whose list of entries cannot be read"
        yield Fault(field, text)
    elif backend == "pytorch" and os.path.exists(file_path) and not _is_torch_archive(file_path):
        shown = os.path.join(config.name, *file_path.split(os.sep)[-2:])
        instead = (
            "not TorchScript; pickled modules and state dicts are not loaded, save the model with "
            "torch.jit.script(model).save(path), or bring its class in 'model.py' and set 'runtime' to 'model.py'"
        )
        yield Fault(field, f"'{shown}' is {instead if os.path.getsize(file_path) else 'empty'}")
    elif backend == "pytorch" and file_path.endswith(".pt2") and _is_not_compiled(file_path):
        shown = os.path.join(config.name, *file_path.split(os.sep)[-2:])
        yield Fault(
            field,
            f"'{shown}' is a program that torch.export has saved; compile it with "
            "torch._inductor.aoti_compile_and_package(program, package_path=path)",
        )
    elif graph is not None:
        yield from check_signature(config, graph)


def missing_packages(config: ModelConfig) -> Iterator[Fault]:
    """Yield a sentence for each package that the backend needs and this Python does not have; imports none."""
    for name, package in traits_of(config).requires.items():
        if find_spec(name) is None:
            yield Fault(
                "backend",
                f"backend '{config.backend}' of model '{config.name}' needs '{name}', which is not installed here; "
                f"install it with: pip install '{package}'",
            )


def _no_backend(config: ModelConfig, instead: str) -> str:
    if instead:
        return f"unable to load model '{config.name}', backend '{config.backend}' is not supported: {instead}"
    return (
        f"unable to find backend library for backend '{config.backend}', try specifying runtime on the model "
        f"configuration. Eagleray has {backends_here()}"
    )


def _check_kinds(config: ModelConfig) -> Iterator[Fault]:
    kinds = traits_of(config).kinds
    active = [(index, group) for index, group in enumerate(config.instance_group) if not group.passive]
    if config.instance_group and not active:
        yield Fault("instance_group", f"model '{config.name}' has no instance group that is not passive")
    for index, group in active:
        kind = ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        if kind == "AUTO" or kind in kinds:
            continue
        path = f"instance_group[{index}].kind"
        if traits_of(config).needs_gpu:
            yield Fault(
                path,
                f"unable to load model '{config.name}', backend '{config.backend}' needs a GPU and instance group "
                f"{group.name} is on KIND_{kind}",
            )
        else:
            yield Fault(path, f"unable to load model '{config.name}', KIND_{kind} is not supported by {config.backend}")


def _check_accelerators(config: ModelConfig) -> Iterator[Fault]:
    if traits_of(config).name != "onnxruntime":
        return
    for kind, known in _ACCELERATORS.items():
        field = f"{kind}_execution_accelerator"
        for index, accelerator in enumerate(getattr(config.optimization.execution_accelerators, field)):
            if accelerator.name not in known:
                yield Fault(
                    f"optimization.execution_accelerators.{field}[{index}].name",
                    f"unknown Execution Accelerator '{accelerator.name}' is requested",
                )


def _is_cut_off(path: str) -> bool:
    """Whether a file is only the beginning of an archive, or a broken one."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        if file.read(len(_ARCHIVE)) != _ARCHIVE:
            return False
    try:
        zipfile.ZipFile(path).close()
    except (zipfile.BadZipFile, ValueError):
        return True
    return False


def _is_torch_archive(path: str) -> bool:
    """Whether a file is TorchScript, or an AOTInductor package: a pickle would run whatever its author put into it."""
    if not zipfile.is_zipfile(path):
        return path.endswith(".pt2")  # which PyTorch refuses in its own words
    if path.endswith(".pt2"):
        return True
    with zipfile.ZipFile(path) as archive:
        return any(entry.endswith("/constants.pkl") for entry in archive.namelist())


def _is_not_compiled(path: str) -> bool:
    """Whether a `model.pt2` is an archive without AOTInductor's code."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return not any("data/aotinductor/" in entry for entry in archive.namelist())
