"""The response cache of a process: answers of its models, the least recently used ones go first."""

from collections import OrderedDict
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np

from protocol.infer import Array, InferRequest, InferResponse, Parameter

_ENTRY_BYTES: Final = 1024
"""What an entry costs besides its arrays, generously."""
_ELEMENT_BYTES: Final = 40
"""What an element of BYTES costs besides its content."""

Key = tuple[int, bytes]


class _Entry(NamedTuple):
    outputs: dict[str, Array]
    parameters: dict[str, Parameter] | None
    size_bytes: int


class ResponseCache:
    """Keeps responses up to `size_bytes` in all; belongs to the loop's thread.

    Every loaded model version has a scope of its own, so that nothing outlives a reload.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._scopes = 0
        self.used_bytes = 0

    def open_scope(self) -> int:
        """Return a number for a model version that was loaded."""
        self._scopes += 1
        return self._scopes

    def close_scope(self, scope: int) -> None:
        """Forget what a model version has answered."""
        for key in [key for key in self._entries if key[0] == scope]:
            self.used_bytes -= self._entries.pop(key).size_bytes

    def find(self, key: Key) -> InferResponse | None:
        """Return a response of its own for the request, None when there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        parameters = entry.parameters
        return InferResponse(entry.outputs.copy(), None if parameters is None else parameters.copy())

    def keep(self, key: Key, response: InferResponse) -> None:
        """Keep a copy of a response, if it fits."""
        size_bytes = _ENTRY_BYTES + sum(map(_size, response.outputs.values()))
        if size_bytes > self._size_bytes or key in self._entries:
            return
        outputs = {name: _frozen(array) for name, array in response.outputs.items()}
        parameters = response.parameters
        self._entries[key] = _Entry(outputs, None if parameters is None else parameters.copy(), size_bytes)
        self.used_bytes += size_bytes
        while self.used_bytes > self._size_bytes:
            self.used_bytes -= self._entries.popitem(last=False)[1].size_bytes


def request_digest(request: InferRequest) -> bytes:
    """Return what two requests have in common only if a model must answer them alike.

    That is their inputs with names, shapes, datatypes and content, their parameters, and the outputs they ask for.
    """
    digest = sha256()
    add = digest.update
    wanted = request.outputs
    parameters = request.parameters
    settings = sorted(parameters.items()) if parameters else None
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


def _size(array: Array) -> int:
    if array.dtype.kind != "O":
        return array.nbytes
    return sum([_ELEMENT_BYTES + len(element) for element in array.ravel().tolist()])


def _frozen(array: Array) -> Array:
    kept = array.copy()
    kept.flags.writeable = False
    return kept
