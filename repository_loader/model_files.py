"""Which backend a model is for, and which file of a version it opens.

Source: Triton's server-side autofill, which also runs under `--disable-auto-complete-config`.
"""

import os
from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import BACKENDS, PYTHON_RUNTIME, BackendTraits, ModelFile, traits_of


class ModelFileError(Exception):
    """There is no file that the backend could open."""


_FILES: tuple[tuple[BackendTraits, ModelFile], ...] = tuple(
    (backend, file) for backend in BACKENDS.values() for file in backend.files
)
_TELLING = tuple((backend, file) for backend, file in _FILES if backend.infers)
_PLATFORM_ALIASES = {"libtorch": "pytorch_libtorch"}
ENSEMBLE = "ensemble"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


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
    known = [(backend, file) for backend, file in _FILES if _matches(backend, file, config)]
    if not known:
        _fill_custom(config)
        return
    backend, file = next((row for row in known if row[1].name in present), known[0])
    if not config.backend:
        config.backend = backend.name
    if not config.platform:
        config.platform = file.platform
    is_code = config.runtime == PYTHON_RUNTIME and backend.name == "pytorch"  # `model.pt` may be its weights alone
    if not config.default_model_filename and not is_code:
        config.default_model_filename = file.name


def _matches(backend: BackendTraits, file: ModelFile, config: ModelConfig) -> bool:
    if config.platform and (file.platform or not config.backend):
        return bool(file.platform == config.platform and config.backend in ("", backend.name))
    return bool(backend.name == config.backend)


def _infer(config: ModelConfig, present: frozenset[str]) -> None:
    wanted = config.default_model_filename
    for backend, file in _TELLING:
        if file.name in present if not wanted else wanted.endswith(_suffix(file.name)):
            config.backend, config.platform = backend.name, file.platform
            return
    if config.name.count(".") and not config.name.endswith("."):
        config.backend = config.name.rsplit(".", 1)[1]
        return
    suffixes = {_suffix(file.name): (backend, file) for backend, file in _TELLING}
    candidates = [suffixes[_suffix(name)] for name in sorted(present) if _suffix(name) in suffixes]
    if len(candidates) == 1:
        backend, file = candidates[0]
        config.backend, config.platform = backend.name, file.platform
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
    if not name or os.path.lexists(os.path.join(version_path, name)):
        return name, None
    suffix = _suffix(name)
    if any(file.name == name for _, file in _FILES) and suffix:
        others = sorted(entry for entry in _names(version_path) if _suffix(entry) == suffix)
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


def check_content(file_path: str, model_path: str) -> None:
    """Refuse a file that Git LFS has left in the place of a model.

    Raises:
        ModelFileError: with what to do.
    """
    if os.path.isfile(file_path):
        with open(file_path, "rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                shown = shown_path(file_path, model_path)
                raise ModelFileError(f"'{shown}' is a pointer of Git LFS and not the file itself; run: git lfs pull")


def shown_path(file_path: str, model_path: str) -> str:
    """Return a model's file as messages name it: by its path in the repository, or by the folder that it is in."""
    inner = os.path.relpath(file_path, os.path.dirname(model_path))
    return os.path.join(*file_path.split(os.sep)[-2:]) if leaves_folder(inner) else inner


def leaves_folder(name: str) -> bool:
    """Whether a relative file name from a configuration could point outside the folder that it is relative to."""
    return "\0" in name or os.path.isabs(name) or ".." in name.split("/")


def backend_needs_file(config: ModelConfig) -> bool:
    """Whether the backend is known to open its model file, so that a missing one can be told early."""
    return traits_of(config).infers and not config.runtime


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


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()
