"""Files that clients send in place of a model's own, in a folder of the node that only its user can open."""

import asyncio
import errno
import hashlib
import io
import logging
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from protocol.errors import InvalidArgument, Unavailable
from repository_loader.model_files import leaves_folder
from repository_loader.validation import check_name

logger = logging.getLogger(__name__)

_FOLDER: Final = "models"
_OWNER_LENGTH: Final = 16
_SENT: Final = re.compile(rf"(.+/{_FOLDER}/[0-9a-f]{{{_OWNER_LENGTH}}})/([0-9a-f]{{32}})/[^/]+")
_PREFIX: Final = "file:"
_MAX_PATH_BYTES: Final = 1024
_MAX_NAME_BYTES: Final = 255  # of file systems
_LOOK_S: Final = 10.0
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

    def names(self) -> Collection[str]:
        """Return what there are files under."""
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
        archive = _pack({_inside(key): content for key, content in files.items()})
        digest = hashlib.sha256(model.encode() + b"\0" + archive).hexdigest()[:32]
        self._store.put_files(digest, archive)
        return str(self._unpack(digest, model, archive))

    def bring(self, data: dict[str, Any]) -> None:
        """Make the paths of a hosted model be those of this node, and fetch files that are not here yet; blocks.

        Raises:
            Unavailable: the disk has no room.
        """
        package = data["package"]
        found = _SENT.fullmatch(package["model_path"])
        if found is None:
            return
        self.here(package["model_path"])
        here = str(self._root)
        for name in ("model_path", "version_path", "file_path"):
            package[name] = package[name].replace(found[1], here, 1)
        labels = data["label_files"]
        data["label_files"] = {output: path.replace(found[1], here, 1) for output, path in labels.items()}

    def here(self, path: str) -> str:
        """Return where a folder that was written on some node is on this one, and fetch it if it is not; blocks."""
        if _SENT.fullmatch(path) is None:
            return path
        digest, model = Path(path).parts[-2:]
        if not os.path.isdir(self._root / digest / model):
            self._unpack(digest, model, self._store.files(digest))
        return str(self._root / digest / model)

    def keep(self, paths: Iterable[str]) -> None:
        """Forget all folders that `write` returned but these; blocks."""
        digests = {Path(path).parent.name for path in paths if path}
        self._store.keep_files(sorted(digests))
        _remove(self._folders(), digests)

    async def run(self) -> None:
        """Remove from this node what is kept no longer, for ever: whoever forgets files may be on another one."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await asyncio.to_thread(self.follow)
            except Exception as error:  # of Ray's, which keeps them
                logger.debug("files that clients sent are looked at again in %g s: %s", _LOOK_S, error)

    def follow(self) -> None:
        """Remove the folders of this node whose files are kept no longer; blocks."""
        if folders := self._folders():  # before the names: whoever makes a folder has kept its files
            _remove(folders, self._store.names())

    def _folders(self) -> list[Path]:
        return list(self._root.iterdir()) if self._root.is_dir() else []

    def _unpack(self, digest: str, model: str, archive: bytes) -> Path:
        target = self._root / digest / model
        if target.is_dir() or not archive:
            return target
        part = None
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f"{digest}-", dir=self._root))
            (part / model).mkdir(mode=0o700)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(part / model, filter="data")
        except (OSError, tarfile.TarError) as error:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_HOST:
                raise Unavailable(f"the files of model '{model}' cannot be written: {error.strerror}") from error
            raise InvalidArgument("the file parameters cannot be the files of one model") from error
        try:
            part.rename(self._root / digest)
        except OSError:  # somebody else was quicker
            shutil.rmtree(part, ignore_errors=True)
        return target


def _remove(folders: Iterable[Path], digests: Collection[str]) -> None:
    """Remove all folders but those of the digests, and the parts of these that are being written."""
    for folder in folders:
        if folder.name.partition("-")[0] not in digests:
            shutil.rmtree(folder, ignore_errors=True)


def _inside(key: str) -> str:
    path = key.removeprefix(_PREFIX)
    encoded = path.encode("utf-8", "surrogatepass")
    if len(encoded) > _MAX_PATH_BYTES or max(map(len, encoded.split(b"/"))) > _MAX_NAME_BYTES:
        raise InvalidArgument(f"Invalid file path '{key}': it is too long.")
    if not path or leaves_folder(path) or path.endswith("/") or os.path.normpath(path) != path:
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
