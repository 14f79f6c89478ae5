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
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deployments.backends.backend import ModelLoadError
from deployments.lane.owned_file import private_folder
from repository_loader.side_files import environment_path

_LOG = logging.getLogger(__name__)

_UNPACK_TIMEOUT_S: Final = 300.0
_FOLDER: Final = "environments"
_DONE: Final = ".eagleray-unpacked"
_LOCK: Final = ".lock"
_UNUSED_S: Final = 86_400.0
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


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Environment:
    """A Python, and the variables of the processes that run it.

    One that was unpacked stays until `let_go` is called, or there is no reference to this any more.
    """

    python: str
    variables: Mapping[str, str]
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False, compare=False)

    def let_go(self) -> None:
        """Say that no process runs it any more; the second call does nothing."""
        self._held.close()


def environment_at(value: str, model_path: str, cache: Path | None = None) -> Environment:
    """Return the environment of a parameter's value, unpacked under `cache`; blocks.

    Raises:
        ModelLoadError: there is none, or the archive is damaged or reaches out of its folder.
    """
    path = Path(environment_path(value, model_path))
    with contextlib.ExitStack() as held:
        if path.is_dir():
            root = path
        elif path.is_file():
            try:
                cache = cache or private_folder(Path(tempfile.gettempdir())) / _FOLDER
                root = _unpacked(path, cache, held)
            except Exception as error:  # of a damaged archive, nearly any
                raise ModelLoadError(f"unable to unpack the execution environment '{value}': {error}") from error
        else:
            raise ModelLoadError(f"the execution environment '{value}' does not exist")
        root = root.resolve()
        python = _python_of(root, value)
        kept = held.pop_all()
    environment = Environment(python, _variables(root), kept)
    weakref.finalize(environment, kept.close)
    return environment


def _python_of(root: Path, value: str) -> str:
    python = root / "bin" / "python"
    if python.is_file() and not os.access(python, os.X_OK):
        raise ModelLoadError(
            f"'bin/python' of the execution environment '{value}' cannot be executed where it is: that may be a file "
            "system that is mounted 'noexec', as of the folder for temporary files (TMPDIR)"
        )
    if not os.access(python, os.X_OK):
        raise ModelLoadError(f"the execution environment '{value}' has no 'bin/python'")
    return str(python)


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


def _unpacked(archive: Path, cache: Path, held: contextlib.ExitStack) -> Path:
    """Return the folder, which nobody removes before `held` is closed."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = cache / digest
    lock = _opened(root)
    held.callback(os.close, lock)
    fcntl.flock(lock, fcntl.LOCK_SH)
    while not (root / _DONE).exists():
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / _DONE).exists():  # nobody has unpacked it meanwhile
            _remove_unused(cache)
            _LOG.info("unpacking the execution environment '%s'", archive)
            _unpack_into(root, archive)
        fcntl.flock(lock, fcntl.LOCK_SH)
    os.utime(root / _DONE)
    return root


def _opened(root: Path) -> int:
    """Return a descriptor of the lock of an environment: shared by those that use it, or held by who changes it."""
    return os.open(f"{root}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _unpack_into(root: Path, archive: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)  # of somebody who died while unpacking
    root.mkdir()
    try:
        _unpack(archive, root)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)  # the disk may be full of it
        raise
    (root / _DONE).touch()


def _remove_unused(cache: Path) -> None:
    """Remove what nobody uses now or has begun to use for a day: every change of an archive is another folder."""
    for root in [path for path in cache.iterdir() if path.is_dir()]:
        lock = _opened(root)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            done = root / _DONE
            if not done.exists() or time.time() - done.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(root, ignore_errors=True)
        except BlockingIOError:  # it is in use
            continue
        finally:
            os.close(lock)


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
