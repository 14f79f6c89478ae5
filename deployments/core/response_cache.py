"""The response cache of a node: answers of its models, which all its processes keep and find in one place."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from deployments.core.response_ring import Buffer, ResponseRing, remove_if_unused
from protocol.infer import Array, InferRequest, InferResponse

logger = logging.getLogger(__name__)

_KINDS: Final = "biufO"
"""Of NumPy's datatypes, those that are kept."""
_PAD_BYTES: Final = 16
_PRESENT: Final = "responses"
"""The file that names the ring which the process that started last has."""
_FORM: Final = 2
"""Raised when the ring, the keys or what is kept under them change: an older process may have one on the same node."""


class ResponseCache:
    """What the models of one scope have answered; belongs to the loop's thread.

    A scope is all that must be the same of two models, in whichever processes, for one to answer for the other. Who
    names no outputs asks for all that a model has: `outputs`.
    """

    def __init__(self, ring: ResponseRing, scope: str = "", outputs: Collection[str] | None = None) -> None:
        self._ring = ring
        self._scope = scope
        self._outputs = outputs
        self._hash = hashlib.sha256(f"{scope}\0".encode())

    def of(self, scope: str, outputs: Collection[str] | None = None) -> "ResponseCache":
        """Return the cache for a narrower scope."""
        return ResponseCache(self._ring, f"{self._scope}\0{scope}", outputs)

    def key(self, request: InferRequest) -> bytes:
        """Return what only requests have in common that the models of the scope must answer alike."""
        digest = self._hash.copy()
        digest.update(request_digest(request, self._outputs))
        return digest.digest()

    def find(self, key: bytes) -> InferResponse | None:
        """Return a response of its own for the request, None when there is none."""
        content = self._ring.find(key)
        return None if content is None else _read(content)

    def keep(self, key: bytes, response: InferResponse) -> None:
        """Keep a copy of a response, if it fits."""
        if all(array.dtype.kind in _KINDS for array in response.outputs.values()):
            self._ring.keep(key, _written(response))

    def close(self) -> None:
        """Keep nothing any more; what the processes do not keep their responses in any longer goes with the last."""
        self._ring.close()
        with contextlib.suppress(OSError):
            if (self._ring.path.parent / _PRESENT).read_text() != self._ring.path.name:
                remove_if_unused(self._ring.path)


def open_response_cache(folder: Path, size_bytes: int) -> ResponseCache | None:
    """Return the cache that the processes have which share a folder; None where there is to be none, or no room.

    One of another size or form, which those before have left, goes with the last that uses it.
    """
    path = folder / f"responses-{_FORM}-{size_bytes}"
    others = [other for other in folder.glob("responses-*") if other != path]
    for other in others:
        remove_if_unused(other)
    try:
        if size_bytes or others:
            (folder / _PRESENT).write_text(path.name if size_bytes else "")
        if not size_bytes:
            return None
        return ResponseCache(ResponseRing(path, size_bytes))
    except OSError as error:
        logger.warning("there is no response cache: %s", error)
        return None


def request_digest(request: InferRequest, outputs: Collection[str] | None = None) -> bytes:
    """Return what two requests have in common only if a model must answer them alike.

    That is their inputs with names, shapes, datatypes and content, their parameters, and the outputs they ask for, of
    all `outputs` where they name none. The id is no part of it, which `generate` hands on as a parameter too.
    """
    digest = hashlib.sha256()
    add = digest.update
    wanted = outputs if request.outputs is None else request.outputs
    parameters = request.parameters or {}
    settings = sorted(item for item in parameters.items() if item != ("id", request.id)) or None
    add(repr((None if wanted is None else sorted(wanted), settings)).encode("utf-8", "surrogatepass"))
    inputs = request.inputs
    for name in sorted(inputs):
        array = inputs[name]
        add(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
        if array.dtype.kind == "O":
            for element in array.ravel().tolist():
                content = element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogatepass")
                add(len(content).to_bytes(8, "little"))
                add(content)
        else:
            add(np.ascontiguousarray(array).data)
    return digest.digest()


def _written(response: InferResponse) -> list[Buffer]:
    """Return a response as bytes: the length of a description in JSON, that, and the arrays."""
    contents = [_content(array) for array in response.outputs.values()]
    arrays = [
        (name, array.dtype.str, array.shape, len(content))
        for (name, array), content in zip(response.outputs.items(), contents, strict=True)
    ]
    description = json.dumps([arrays, response.parameters]).encode()
    parts: list[Buffer] = [len(description).to_bytes(8, "little"), description, _padding(8 + len(description))]
    for content in contents:
        parts += (content, _padding(len(content)))
    return parts


def _content(array: Array) -> Buffer:
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    texts = [_text(element) for element in array.ravel().tolist()]
    return b"".join([np.array([len(text) for text in texts], "<u8").tobytes(), *texts])


def _text(element: Any) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogatepass")


def _padding(length: int) -> bytes:
    return bytes(-length % _PAD_BYTES)


def _read(content: bytes) -> InferResponse:
    end = 8 + int.from_bytes(content[:8], "little")
    arrays, parameters = json.loads(content[8:end])
    outputs: dict[str, Array] = {}
    for name, datatype, shape, length in arrays:
        start = end + -end % _PAD_BYTES
        end = start + length
        dtype, count = np.dtype(datatype), prod(shape)
        if dtype.kind == "O":
            array = np.empty(count, object)
            array[:] = list(_texts(content, start, count))
        else:
            array = np.frombuffer(content, dtype, count, start)
        outputs[name] = array.reshape(shape)
    return InferResponse(outputs, parameters)


def _texts(content: bytes, start: int, count: int) -> Iterator[bytes]:
    at = start + 8 * count
    for length in np.frombuffer(content, "<u8", count, start).tolist():
        yield content[at : at + length]
        at += length
