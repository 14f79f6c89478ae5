"""`EXECUTION_ENV_PATH`: the Python environment that a model's process starts in.

It is a folder, or an archive as conda-pack makes it. An archive is unpacked once on each node, under the SHA-256 of its
content, so that another content is another environment and models share equal ones.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deployments.backends.backend import ModelLoadError
from deployments.lane.owned_file import private_folder
from repository_loader.side_files import environment_path

_LOG = logging.getLogger(__name__)

_UNPACK_TIMEOUT_S: Final = 300.0
_FOLDER: Final = "environments"
_DONE: Final = ".eagleray-unpacked"
_HOME: Final = str(Path(__file__).resolve().parents[4])

ENTRY: Final = f"""
import sys
if sys.version_info < (3, 11):
    sys.exit(41)
sys.path[:] = filter(None, sys.path)
try:
    import numpy
except ImportError:
    sys.exit(42)
sys.path.insert(0, {_HOME!r})
"""
"""What a process in any environment does first: NumPy is its own, as another may lie beside our code."""
REFUSALS: Final = {
    41: "needs Python 3.11 or newer, which its execution environment is not",
    42: "needs NumPy, which its execution environment does not have",
}
"""What the exit codes of `ENTRY` say of a process."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python, and the variables of the processes that run it."""

    python: str
    variables: Mapping[str, str]


def environment_at(value: str, model_path: str, cache: Path | None = None) -> Environment:
    """Return the environment of a parameter's value, unpacked under `cache`; blocks.

    Raises:
        ModelLoadError: there is none, or the archive is damaged or reaches out of its folder.
    """
    path = Path(environment_path(value, model_path))
    if path.is_dir():
        root = path
    elif path.is_file():
        try:
            root = _unpacked(path, private_folder(Path(tempfile.gettempdir())) / _FOLDER if cache is None else cache)
        except Exception as error:  # of a damaged archive, nearly any
            raise ModelLoadError(f"unable to unpack the execution environment '{value}': {error}") from error
    else:
        raise ModelLoadError(f"the execution environment '{value}' does not exist")
    root = root.resolve()
    python = root / "bin" / "python"
    if python.is_file() and not os.access(python, os.X_OK):
        raise ModelLoadError(
            f"'bin/python' of the execution environment '{value}' cannot be executed where it is: that may be a file "
            "system that is mounted 'noexec', as of the folder for temporary files (TMPDIR)"
        )
    if not os.access(python, os.X_OK):
        raise ModelLoadError(f"the execution environment '{value}' has no 'bin/python'")
    return Environment(str(python), _variables(root))


def _variables(root: Path) -> dict[str, str]:
    """Return the variables as activating the environment would set them."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kind = "CONDA_PREFIX" if (root / "conda-meta").is_dir() else "VIRTUAL_ENV"
    return {
        **ours,
        kind: str(root),
        "PATH": os.pathsep.join(filter(None, (str(root / "bin"), ours.get("PATH")))),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(root / "lib"), ours.get("LD_LIBRARY_PATH")))),
    }


def _unpacked(archive: Path, cache: Path) -> Path:
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = cache / digest
    with _locked(cache / f"{digest}.lock"):
        if (root / _DONE).exists():
            return root
        shutil.rmtree(root, ignore_errors=True)  # of somebody who died while unpacking
        root.mkdir()
        _LOG.info("unpacking the execution environment '%s'", archive)
        try:
            _unpack(archive, root)
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)  # the disk may be full of it
            raise
        (root / _DONE).touch()
    return root


def _unpack(archive: Path, root: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter=_checked)
    unpack = root / "bin" / "conda-unpack"
    if unpack.exists():  # makes paths within the environment right for this place
        subprocess.run([str(root / "bin" / "python"), str(unpack)], check=True, timeout=_UNPACK_TIMEOUT_S)


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Refuse what would be written elsewhere: through `..`, through links, or as a device.

    A symbolic link may point elsewhere, as `bin/python` of a virtual environment does; nothing is written through it.
    """
    if member.isdev():
        raise tarfile.SpecialFileError(member)
    if member.name.startswith("/"):
        raise tarfile.AbsolutePathError(member)
    if member.islnk():
        return tarfile.data_filter(member, folder)
    return tarfile.tar_filter(member, folder)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
