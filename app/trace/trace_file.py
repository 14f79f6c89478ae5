"""Triton's trace files: one JSON array, which every ingress of a node adds to, or one for every so many traces."""

import errno
import fcntl
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from app.trace.collector import Item
from app.trace.sampler import Sampler
from deployments.core.pauses import Pauses
from protocol.bytes_tensor import decode_bytes
from protocol.datatypes import BY_NAME
from protocol.infer import Array
from protocol.trace import TENSORS, TIMESTAMPS, Trace, TracedTensor

logger = logging.getLogger(__name__)

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o640
_LOCK_TIMEOUT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.01
_HEAD: Final = b'[\n{"id":'
"""What a file of ours begins with. It ends with "\\n]", and has line ends before commas, which no object has within."""
_BLOCK_BYTES: Final = 1 << 20
_MAX_INDEX: Final = 1_000_000
_MAX_KEPT_BYTES: Final = 16 << 20
_SLICE: Final = 2_000


class TraceFile:
    """Writes traces to `path`, or to `path.0`, `path.1` and so on, as each trace's settings say.

    Settings with a count have a numbered file of their own. An array is whole at any time, but where a process was
    killed as it wrote: then it is so again with the next trace. What an earlier server has written stays in it. Blocks:
    for a thread.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._index = 0
        self._gathered: dict[Sampler, list[bytes]] = {}
        self._gathered_bytes = 0
        self._counts: dict[Sampler, int] = {}
        """How many traces of each sampler have come."""
        self._collections: dict[Sampler, str] = {}
        """The file of each sampler that traces a number of requests."""

    def write(self, items: Sequence[Item]) -> None:
        """Write traces, or keep them until there are enough for a file.

        Raises:
            OSError: they cannot be written.
        """
        now: dict[str, list[bytes]] = {}
        now_bytes = 0
        pauses = Pauses()
        for trace, sampler in items:
            text = _text(trace, pauses)
            if sampler.sampling.log_frequency:
                self._gather(text, sampler)
                continue
            now.setdefault(self._file_of(sampler), []).append(text)
            now_bytes += len(text)
            if now_bytes >= _MAX_KEPT_BYTES:
                _append_all(now)
                now, now_bytes = {}, 0
        _append_all(now)
        for sampler in [each for each in self._collections if each.ended]:
            del self._collections[sampler]
        for sampler in [each for each in self._counts if each.ended]:
            del self._counts[sampler]
            self._write_gathered(sampler)

    def finish(self) -> None:
        """Write what was kept."""
        for sampler in list(self._gathered):
            self._write_gathered(sampler)

    def _gather(self, text: bytes, sampler: Sampler) -> None:
        """Keep a trace, and write what is kept when it is enough, or too much, or no more will come."""
        gathered = self._gathered.setdefault(sampler, [])
        gathered.append(text)
        self._gathered_bytes += len(text)
        count = self._counts[sampler] = self._counts.get(sampler, 0) + 1
        if len(gathered) >= sampler.sampling.log_frequency or count == sampler.sampling.count:
            self._write_gathered(sampler)
        if self._gathered_bytes >= _MAX_KEPT_BYTES:
            self.finish()

    def _write_gathered(self, sampler: Sampler) -> None:
        texts = self._gathered.pop(sampler, None)
        if texts:
            self._gathered_bytes -= sum(map(len, texts))
            self._write_next(b"[" + b",".join(texts) + b"]")

    def _file_of(self, sampler: Sampler) -> str:
        """Return the file for traces of a sampler, which goes on with its own."""
        if sampler.sampling.count <= 0 or (sampler.ended and sampler not in self._collections):
            return self._path
        if sampler not in self._collections:
            self._collections[sampler] = self._write_next(b"")
        return self._collections[sampler]

    def _write_next(self, data: bytes) -> str:
        """Write the file with the first number that is free, and return its path; it appears whole."""
        draft = f"{self._path}.{secrets.token_hex(8)}.draft"  # containers that share a folder share process numbers
        descriptor = os.open(draft, _FLAGS | os.O_EXCL, _MODE)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            while self._index < _MAX_INDEX:
                path = f"{self._path}.{self._index}"
                try:
                    os.link(draft, path)
                    return path
                except FileExistsError:
                    self._index += 1
            raise OSError(errno.EMFILE, f"there are {_MAX_INDEX} trace files", self._path)
        finally:
            os.unlink(draft)


def _append_all(texts: Mapping[str, Sequence[bytes]]) -> None:
    for path, some in texts.items():
        append(path, b",".join(some))


def append(path: str, objects: bytes) -> None:
    """Add objects to the array in a file, which is made if it is not there.

    Raises:
        OSError: the file cannot be written, or is none of such arrays.
    """
    descriptor = os.open(path, _FLAGS, _MODE)
    try:
        _lock(descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        size = _heal(descriptor, status.st_size)
        tail = os.pread(descriptor, 64, max(size - 64, 0))
        if not size:
            at, data = 0, b"[\n" + objects + b"\n]"
        elif tail.endswith(b"]"):
            comma = b"" if tail[:-1].rstrip().endswith(b"[") else b","
            at, data = size - 1, comma + objects + b"\n]"
        else:
            raise OSError(errno.EINVAL, "ends in no JSON array: move it away, and traces are written again", path)
        if os.pwrite(descriptor, data, at) < len(data):
            os.ftruncate(descriptor, at)
            if size:
                os.pwrite(descriptor, b"]", at)
            raise OSError(errno.ENOSPC, "has no room for more", path)
    finally:
        os.close(descriptor)


def _heal(descriptor: int, size: int) -> int:
    """Remove what a process was writing when it was killed, if the file is ours; returns the file's size."""
    if not size or os.pread(descriptor, 2, max(size - 2, 0)) == b"\n]":
        return size
    if not _HEAD.startswith(os.pread(descriptor, len(_HEAD), 0)):
        return size
    end = _end_of_lines(descriptor, size)
    if end <= len(b"[\n"):
        end = 0
    elif os.pread(descriptor, 1, end - 2) != b"}":
        return size
    os.ftruncate(descriptor, end)
    if end:
        os.pwrite(descriptor, b"]", end)
        end += 1
    logger.warning("%d bytes of traces were lost with a process that was killed as it wrote them", size - end)
    return end


def _end_of_lines(descriptor: int, size: int) -> int:
    """Return where a file's last line, which has no end, begins."""
    while size:
        start = max(size - _BLOCK_BYTES, 0)
        found = os.pread(descriptor, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0


def _lock(descriptor: int) -> None:
    ends_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _text(trace: Trace, pauses: Pauses) -> bytes:
    texts = []
    for each in objects(trace, pauses):
        texts.append(orjson.dumps(each))
        pauses()
    return b",".join(texts)


def objects(trace: Trace, pauses: Pauses) -> Iterator[dict[str, Any]]:
    """Return the objects that stand for a trace and those below it, as Triton writes them."""
    about: dict[str, Any] = {"id": trace.id, "model_name": trace.model_name, "model_version": trace.version}
    if trace.request_id:
        about["request_id"] = trace.request_id
    if trace.parent_id:
        about["parent_id"] = trace.parent_id
    yield about
    if trace.flags & TIMESTAMPS:
        for name, at_ns in sorted(trace.timestamps, key=lambda each: each[1]):
            yield {"id": trace.id, "timestamps": [{"name": name, "ns": at_ns}]}
    if trace.flags & TENSORS:
        for tensor in trace.tensors:
            about_tensor = {
                "name": tensor.name,
                "data": data_text(tensor, pauses),
                "shape": ",".join(map(str, tensor.shape)),
                "dtype": tensor.datatype,
            }
            yield {"id": trace.id, "activity": tensor.activity, "tensor": about_tensor}
    for child in trace.children:
        yield from objects(child, pauses)


def data_text(tensor: TracedTensor, pauses: Pauses) -> str:
    """Return the elements of a tensor, with commas between them; "" where its data were not kept."""
    if not tensor.data:
        return ""
    if tensor.datatype == "BYTES":
        values = decode_bytes(tensor.data, 0, len(tensor.data), tensor.shape, tensor.name, "").ravel()
        return _joined(values, lambda element: f'"{element.decode("utf-8", "replace")}"', pauses)
    values = np.frombuffer(tensor.data, BY_NAME[tensor.datatype].numpy)
    if tensor.datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if tensor.datatype == "BOOL":
        values = values.view(np.uint8)
    return _joined(values, str, pauses)


def _joined(values: Array, text: Callable[[Any], str], pauses: Pauses) -> str:
    """Return all elements as text; `join` does not let another thread run before it ends, so it gets few at a time."""
    texts = []
    for at in range(0, values.size, _SLICE):
        some = values[at : at + _SLICE]
        texts.append(",".join(map(text, some if some.dtype.kind == "f" else some.tolist())))
        pauses()
    return ",".join(texts)
