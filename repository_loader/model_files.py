"""Which backend a model is for, and which file of a version it opens.

Source: Triton's server-side autofill, which also runs under `--disable-auto-complete-config`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig


class ModelFileError(Exception):
    """There is no file that the backend could open."""


@dataclass(frozen=True, slots=True)
class _Known:
    backend: str
    platform: str
    default_file: str
    inferred: bool


_KNOWN = (
    _Known("tensorrt", "tensorrt_plan", "model.plan", True),
    _Known("onnxruntime", "onnxruntime_onnx", "model.onnx", True),
    _Known("openvino", "", "model.xml", True),
    _Known("pytorch", "pytorch_libtorch", "model.pt", True),
    _Known("pytorch", "torch_aoti", "model.pt2", True),
    _Known("tensorflow", "tensorflow_savedmodel", "model.savedmodel", True),
    _Known("tensorflow", "tensorflow_graphdef", "model.graphdef", True),
    _Known("python", "", "model.py", True),
    _Known("dali", "", "model.dali", False),
    _Known("vllm", "", "model.json", False),
)
_PLATFORM_ALIASES = {"libtorch": "pytorch_libtorch"}
ENSEMBLE = "ensemble"


def is_ensemble(config: ModelConfig) -> bool:
    """Whether the model is a graph of other models."""
    return bool(config.platform == ENSEMBLE)


def fill_backend(config: ModelConfig, version_paths: Sequence[str]) -> None:
    """Fill `backend`, `platform` and `default_model_filename` where the configuration leaves them open.

    `version_paths` are the version folders, the first in lexicographic order is inspected.

    Raises:
        ModelFileError: nothing tells the backend.
    """
    if is_ensemble(config):
        return
    config.platform = _PLATFORM_ALIASES.get(config.platform, config.platform)
    present = _names(min(version_paths, key=os.path.basename)) if version_paths else frozenset()
    if not config.backend and not config.platform:
        _infer(config, present)
    known = [row for row in _KNOWN if _matches(row, config)]
    if not known:
        _fill_custom(config)
        return
    chosen = next((row for row in known if row.default_file in present), known[0])
    if not config.backend:
        config.backend = chosen.backend
    if not config.platform:
        config.platform = chosen.platform
    if not config.default_model_filename:
        config.default_model_filename = chosen.default_file


def _matches(row: _Known, config: ModelConfig) -> bool:
    if config.platform:
        return bool(row.platform == config.platform and config.backend in ("", row.backend))
    return bool(row.backend == config.backend)


def _infer(config: ModelConfig, present: frozenset[str]) -> None:
    wanted = config.default_model_filename
    for row in _KNOWN:
        suffix = os.path.splitext(row.default_file)[1]
        if row.inferred and (row.default_file in present if not wanted else wanted.endswith(suffix)):
            config.backend, config.platform = row.backend, row.platform
            return
    if config.name.count(".") and not config.name.endswith("."):
        config.backend = config.name.rsplit(".", 1)[1]
        return
    suffixes = {os.path.splitext(row.default_file)[1]: row for row in _KNOWN if row.inferred}
    candidates = [
        suffixes[os.path.splitext(name)[1]] for name in sorted(present) if os.path.splitext(name)[1] in suffixes
    ]
    if len(candidates) == 1:
        config.backend, config.platform = candidates[0].backend, candidates[0].platform
        return
    raise ModelFileError(
        f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


def _fill_custom(config: ModelConfig) -> None:
    if config.backend and not config.default_model_filename:
        config.default_model_filename = f"model.{config.backend}"


def default_file(config: ModelConfig, version_path: str) -> tuple[str, str | None]:
    """Return the model file's name inside the version folder, and a warning when it is not the configured one.

    If the default file is not there and exactly one file has its extension, that file is the model.
    """
    name = config.default_model_filename
    if not name or os.path.exists(os.path.join(version_path, name)):
        return name, None
    suffix = os.path.splitext(name)[1]
    if any(row.default_file == name for row in _KNOWN) and suffix:
        others = sorted(entry for entry in _names(version_path) if os.path.splitext(entry)[1] == suffix)
        taken = set(config.cc_model_filenames.values())
        others = [entry for entry in others if entry not in taken]
        if len(others) == 1:
            return others[0], (
                f"'{name}' is not in version {os.path.basename(version_path)}; the only file with its extension, "
                f"'{others[0]}', is used: set 'default_model_filename' to say so"
            )
    return name, None


def model_file(config: ModelConfig, version_path: str, compute_capability: str | None) -> str:
    """Return the path of the file to open on a GPU of that compute capability (`"7.5"`), or on the CPU (None).

    The path is inside the version folder, links resolved at its last step excepted; it may be a folder.

    Raises:
        ModelFileError: the name leaves the version folder.
    """
    name, _ = default_file(config, version_path)
    if compute_capability is not None:
        name = config.cc_model_filenames.get(compute_capability, name)
    return inside(version_path, name, config.name)


def inside(folder: str, name: str, model_name: str) -> str:
    """Join a configured file name to its folder.

    Raises:
        ModelFileError: the result is not below the folder.
    """
    if leaves_folder(name):
        raise ModelFileError(f"file name '{name}' of model '{model_name}' leaves the folder it belongs to")
    return os.path.normpath(os.path.join(folder, name))


def leaves_folder(name: str) -> bool:
    """Whether a relative file name from a configuration could point outside the folder that it is relative to."""
    return "\0" in name or os.path.isabs(name) or ".." in name.split("/")


def backend_needs_file(config: ModelConfig) -> bool:
    """Whether the backend is known to open its model file, so that a missing one can be told early."""
    return any(row.backend == config.backend and row.inferred for row in _KNOWN) and not config.runtime


def exists_for_some_device(config: ModelConfig, version_path: str) -> bool:
    """Whether the default file or one of `cc_model_filenames` is there."""
    names = [default_file(config, version_path)[0], *config.cc_model_filenames.values()]
    return any(os.path.exists(inside(version_path, name, config.name)) for name in names)


def files_bytes(path: str) -> int:
    """Return the size of a file, or of all files below a folder; 0 if there is none."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    total = 0
    for folder, _, names in os.walk(path):
        total += sum(os.path.getsize(full) for name in names if os.path.isfile(full := os.path.join(folder, name)))
    return total


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()
