"""One end of the connection between a replica and the process of a Python model: messages with tensors.

A message is one packet of a Unix socket (SOCK_SEQPACKET), which is a tuple in Python's `marshal` form. Small tensors
are in it, large ones and long messages in shared memory; what lies in other shared memory already, a client's or a
lane's, is only named. Both ends are ours; nothing of a client's is in that form.
"""

import marshal
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap
from typing import Any, Final, Protocol

import numpy as np

from deployments.backends.python.process.area import TOLD_BYTES, OwnArea, PeerArea, aligned
from deployments.backends.python.process.in_turn import InTurn
from deployments.replica.guarded_mapping import GuardedMapping
from protocol.infer import Array

PACKET_BYTES = 60_000
"""What a socket takes at once with its default buffer, whatever the kernel adds."""
READ_BYTES = PACKET_BYTES + 4096
MAX_DESCRIPTORS: Final = 250
"""Open files in one packet; the kernel takes 253."""
_INLINE_BYTES = 8 << 10
_INLINE_TOTAL_BYTES = 32 << 10
_FORMAT = 4
"""Of marshal: the same in every Python from 3.4 on; the two ends may differ."""

Tensors = list[tuple[str, str | None, tuple[int, ...], Any]]
"""Name, dtype (None: BYTES), shape, and content: bytes, a list of elements, an offset in the message's place, a place
elsewhere, or None for an output that is where it is wanted."""

Place = tuple[int, int, int]
"""The number of a mapping that both ends have, an offset in it, and a size in bytes."""
HeldPlace = tuple[int, int, int, int]
"""A place whose content the reader may keep and write to, and the number under which the writer holds it as long."""


class Places(Protocol):
    """How the reader is told of what lies in memory that it can map too."""

    def place(self, buffer: memoryview) -> Place | None:
        """Return where an output is wanted; None if the reader cannot write it there."""
        ...

    def input_place(self, array: Array) -> Place | HeldPlace | None:
        """Return where a contiguous tensor is; None if the reader cannot read it there."""
        ...


class Writer:
    """Collects the tensors of one message."""

    __slots__ = ("_inline_bytes", "_large", "_size_bytes", "places")

    def __init__(self, places: Places | None = None) -> None:
        self.places = places
        self._inline_bytes = 0
        self._size_bytes = 0
        self._large: list[tuple[int, Array]] = []

    def describe(self, arrays: Mapping[str, Array], places: Mapping[str, memoryview] | None = None) -> Tensors:
        """Return what stands in the message for some tensors.

        A large one that fits in its place of `places` is written there, and nowhere else where that has memory.
        """
        tensors: Tensors = []
        for name, array in arrays.items():
            dtype = array.dtype
            if dtype.hasobject:
                tensors.append((name, None, array.shape, array.ravel().tolist()))
                continue
            size = array.nbytes
            content: Any
            if size <= _INLINE_BYTES and self._inline_bytes + size <= _INLINE_TOTAL_BYTES:
                self._inline_bytes += size
                content = array.tobytes()
            elif places is not None and name in places and _put(array, places[name]):
                content = None
            elif (
                self.places is not None
                and array.flags.c_contiguous
                and (place := self.places.input_place(array)) is not None
            ):
                content = place
            else:
                content = self._size_bytes
                self._large.append((content, array))
                self._size_bytes += aligned(size)
            tensors.append((name, dtype.str, array.shape, content))
        return tensors

    def store(self, area: OwnArea) -> tuple[int, int]:
        """Write the large tensors; returns the offset and size of their place, (0, 0) without one.

        They are let go then, so that what they lie in may go back with this message.
        """
        if not self._large:
            return 0, 0
        offset = area.take(self._size_bytes)
        large, self._large = self._large, []
        area.write(offset, large)
        return offset, self._size_bytes


def _put(array: Array, place: memoryview) -> bool:
    """Write an array where it is wanted; returns whether it is there, for which there may be no memory."""
    if array.nbytes > place.nbytes:
        return False
    np.ndarray(array.shape, array.dtype, place)[...] = array
    return not (isinstance(place.obj, GuardedMapping) and place.obj.lost)


def received(connection: socket.socket) -> bytes | None:
    """Return the next message of a connection that does not block, b"" at its end, None when there is none now."""
    try:
        return connection.recv(READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Channel:
    """Sends and reads messages: `(kind, freed, area_bytes, offset, size, *fields)`. Any thread may send.

    The connection and the areas belong to it.
    """

    def __init__(self, connection: socket.socket, own: OwnArea, peer: PeerArea) -> None:
        self.connection = connection
        self._own = own
        self._peer = peer
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._in_turn = InTurn()
        self._lock = self._in_turn.lock

    def send(self, kind: str, writer: Writer | None, *fields: Any) -> None:
        """Send a message; `writer` holds its tensors.

        What the garbage collector sends on this thread, in the middle of another message, follows that.

        Raises:
            AreaFullError: there is no shared memory for its tensors.
            OSError: the other end is gone, or (BlockingIOError) reads nothing.
        """
        self._in_turn(self._send, kind, writer, *fields)

    def _send(self, kind: str, writer: Writer | None, *fields: Any) -> None:
        self.connection.send(self._packed(kind, writer, *fields))

    def send_descriptors(self, kind: str, descriptors: Sequence[int], *fields: Any) -> None:
        """Send a message, and a packet that carries `MAX_DESCRIPTORS` open files at most.

        Raises:
            OSError: the other end is gone, or reads nothing.
        """
        with self._lock:
            self.connection.send(self._packed(kind, None, *fields))
            socket.send_fds(self.connection, [b"."], descriptors)

    def receive_descriptors(self, count: int) -> list[int]:
        """Return the open files of the next packet."""
        _, descriptors, _, _ = socket.recv_fds(self.connection, 1, count)
        for descriptor in descriptors:  # not for programs that the model starts
            os.set_inheritable(descriptor, False)
        return descriptors

    def packed(self, kind: str, writer: Writer | None, *fields: Any) -> bytes:
        """Return a message, which is to be sent. Raises AreaFullError."""
        with self._lock:
            return self._packed(kind, writer, *fields)

    def _packed(self, kind: str, writer: Writer | None, *fields: Any) -> bytes:
        offset, size = (0, 0) if writer is None else writer.store(self._own)
        freed = self._peer.take_freed()
        try:
            data = marshal.dumps((kind, freed, self._own.size_bytes, offset, size, *fields), _FORMAT)
            if len(data) > PACKET_BYTES:
                place = self._own.write_bytes(data)
                data = marshal.dumps(("long", (), self._own.size_bytes, place, len(data)), _FORMAT)
        except Exception:  # there is no room, or a model has given what cannot be sent
            self._peer.keep_freed(freed)
            if size:
                self._own.release((offset,))
            raise
        return data

    def read(self, data: bytes) -> tuple[str, Array | None, tuple[Any, ...]]:
        """Return the kind of a message, the place of its large tensors, and its fields."""
        kind, freed, area_bytes, offset, size, *fields = marshal.loads(data)
        if kind == "long":
            kind, freed, area_bytes, offset, size, *fields = marshal.loads(
                self._peer.read(offset, size, area_bytes).data
            )
        if freed:
            self.release(freed)
        return kind, self._peer.read(offset, size, area_bytes) if size else None, tuple(fields)

    @property
    def owes_room(self) -> bool:
        """Whether so much of what has come is not looked at any more that the other end must hear of it by itself."""
        return self._peer.freed_bytes >= TOLD_BYTES

    def take_freed(self) -> tuple[int, ...]:
        """Return the places that became free, which no message tells the other end then."""
        with self._lock:
            return self._peer.take_freed()

    def release(self, freed: Sequence[int]) -> None:
        """Take back the places that the other end no longer looks at; any thread may call this."""
        with self._lock:
            self._own.release(freed)

    def close(self) -> list[mmap]:
        """Close the connection and the areas, and return what is mapped of these, for `unmap`."""
        self.connection.close()
        with self._lock:
            return self._own.close() + self._peer.close()

    def arrays(
        self,
        tensors: Tensors,
        place: Array | None,
        view: Callable[[Place], memoryview] | None = None,
        places: Mapping[str, memoryview] | None = None,
    ) -> dict[str, Array]:
        """Return the tensors of a message by name; small ones are read-only.

        What lies in other memory is found by `view`. A client's is copied, so that whoever gets it may write to it; an
        output that is where it is wanted, is in `places`.
        """
        arrays: dict[str, Array] = {}
        dtypes = self._dtypes
        for name, code, shape, content in tensors:
            if code is None:
                array: Array = np.empty(len(content), np.object_)
                array[:] = content
                arrays[name] = array.reshape(shape)
                continue
            dtype = dtypes.get(code)
            if dtype is None:
                dtype = dtypes[code] = np.dtype(code)
            if type(content) is int:
                assert place is not None
                arrays[name] = np.ndarray(shape, dtype, place, content)
            elif type(content) is tuple:
                assert view is not None
                memory = view(content[:3])
                if len(content) == 3:
                    arrays[name] = np.ndarray(shape, dtype, memory).copy()
                else:
                    arrays[name] = np.ndarray(shape, dtype, self._peer.watch(content[3], memory))
            elif content is None:
                assert places is not None
                arrays[name] = np.ndarray(shape, dtype, places[name])
            else:
                arrays[name] = np.ndarray(shape, dtype, content)
        return arrays
