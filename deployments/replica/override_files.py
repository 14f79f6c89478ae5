"""Files that clients send in place of a model's own, in a folder of the node that only its user can open."""

import errno
import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from protocol.errors import InvalidArgument, Unavailable
from repository_loader.model_files import leaves_folder
from repository_loader.validation import check_name

_FOLDER: Final = "models"
_OWNER_LENGTH: Final = 16
_SENT: Final = re.compile(rf"(.+/{_FOLDER}/[0-9a-f]{{{_OWNER_LENGTH}}})/([0-9a-f]{{32}})/[^/]+")
_PREFIX: Final = "file:"
_MAX_PATH_BYTES: Final = 1024
_FAULTS_OF_THE_HOST: Final = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)
}


class FileStore(Protocol):
    """Where the files are kept for other nodes, and for other processes of a node whose folder has gone.

    `owner` is the Serve application whose clients have sent them.
    """

    owner: str

    def put_files(self, name: str, archive: bytes) -> None:
        """Keep files under a name."""
        ...

    def files(self, name: str) -> bytes:
        """Return files, b"" when they are not known."""
        ...

    def keep_files(self, names: list[str]) -> None:
        """Forget all files but these."""
        ...


class OverrideFiles:
    """Writes model folders `<node's folder>/models/<owner>/<digest>/<model>`.

    The same files of a model are the same folder.
    """

    def __init__(self, node: Path, store: FileStore) -> None:
        self._root = node / _FOLDER / hashlib.sha256(store.owner.encode()).hexdigest()[:_OWNER_LENGTH]
        self._store = store

    def write(self, model: str, files: Mapping[str, bytes]) -> str:
        """Write `file:<path>` → content as a model's folder, and return its path; blocks.

        Raises:
            InvalidArgument: the name is none of a folder, or a path is not one of a file inside the model's folder.
            Unavailable: the disk has no room.
        """
        if wrong_name := check_name(model):
            raise InvalidArgument(wrong_name)
        for key in files:
            _inside(key)
        archive = _pack({_inside(key): content for key, content in files.items()})
        digest = hashlib.sha256(model.encode() + b"\0" + archive).hexdigest()[:32]
        self._store.put_files(digest, archive)
        return str(self._unpack(digest, model, archive))

    def bring(self, load: list[dict[str, Any]]) -> None:
        """Make the paths of hosted models be those of this node, and fetch files that are not here yet; blocks."""
        for data in load:
            package = data["package"]
            found = _SENT.fullmatch(package["model_path"])
            if found is None:
                continue
            here, digest = str(self._root), found[2]
            for name in ("model_path", "version_path", "file_path"):
                package[name] = package[name].replace(found[1], here, 1)
            labels = data["label_files"]
            data["label_files"] = {output: path.replace(found[1], here, 1) for output, path in labels.items()}
            if not os.path.isdir(package["model_path"]):
                self._unpack(digest, package["name"], self._store.files(digest))

    def keep(self, paths: Iterable[str]) -> None:
        """Forget all folders that `write` returned but these; blocks."""
        digests = {Path(path).parent.name for path in paths if path}
        self._store.keep_files(sorted(digests))
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if folder.name not in digests:
                    shutil.rmtree(folder, ignore_errors=True)

    def _unpack(self, digest: str, model: str, archive: bytes) -> Path:
        target = self._root / digest / model
        if target.is_dir() or not archive:
            return target
        part = self._root / f".{digest}-{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            (part / model).mkdir(mode=0o700, parents=True)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(part / model, filter="data")
        except (OSError, tarfile.TarError) as error:
            shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_HOST:
                raise Unavailable(f"the files of model '{model}' cannot be written: {error.strerror}") from error
            raise InvalidArgument("the file parameters cannot be the files of one model") from error
        try:
            part.rename(self._root / digest)
        except OSError:  # somebody else was quicker
            shutil.rmtree(part, ignore_errors=True)
        return target


def _inside(key: str) -> str:
    path = key.removeprefix(_PREFIX)
    is_long = len(path.encode("utf-8", "surrogatepass")) > _MAX_PATH_BYTES
    if not path or is_long or leaves_folder(path) or path.endswith("/") or os.path.normpath(path) != path:
        raise InvalidArgument(f"Invalid file parameter '{key}': the path must stay within model directory.")
    return path


def _pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
