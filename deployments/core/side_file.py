"""A file beside a model that its configuration names: data of a warm-up, an initial state."""

from pathlib import Path

from deployments.backends.backend import ModelLoadError
from repository_loader.model_files import leaves_folder
from repository_loader.package import ModelPackage


def read_side_file(package: ModelPackage, folder: str, name: str, kind: str) -> bytes:
    """Return what a file in one of the model's folders holds; `kind` is what an error calls it.

    A link is followed, as those of model files and labels are.

    Raises:
        ModelLoadError: it cannot be read, or its name leads out of the folder.
    """
    if leaves_folder(name):
        raise ModelLoadError(f"{kind} '{name}' of model '{package.name}' lies outside its {folder} folder")
    try:
        return Path(package.model_path, folder, name).read_bytes()
    except OSError as error:
        raise ModelLoadError(f"unable to read {kind} '{name}' of model '{package.name}': {error.strerror}") from error
