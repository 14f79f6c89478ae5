"""A file beside a model that its configuration names: data of a warm-up, an initial state."""

import os
from pathlib import Path

from deployments.backends.backend import ModelLoadError
from repository_loader.package import ModelPackage


def read_side_file(package: ModelPackage, folder: str, name: str, kind: str) -> bytes:
    """Return what a file in one of the model's folders holds; `kind` is what an error calls it.

    Raises:
        ModelLoadError: it cannot be read, or a link leads out of the folder.
    """
    root = os.path.realpath(os.path.join(package.model_path, folder))
    path = os.path.realpath(os.path.join(root, name))
    if os.path.commonpath((root, path)) != root:
        raise ModelLoadError(f"{kind} '{name}' of model '{package.name}' lies outside its {folder} folder")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ModelLoadError(f"unable to read {kind} '{name}' of model '{package.name}': {error.strerror}") from error
