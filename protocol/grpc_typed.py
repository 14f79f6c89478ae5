"""Messages whose inputs all have typed FP32 or FP64 contents, recognised by what is around the numbers.

On the wire these lie as in memory, so that such a message is read like one with raw contents.
"""

from collections.abc import Sequence

from protocol.grpc_request import INPUTS_FIELD, Content, GrpcHeader
from protocol.protobuf_wire import LENGTH_DELIMITED, walk

_CONTENTS = 5
_PACKED = (6, 7)  # fp32_contents, fp64_contents
_MOST_MISSES = 64


class TypedMessage:
    """What messages of one length have in common that differ in their numbers and their id only.

    Positions count from behind the id.
    """

    __slots__ = ("_contents", "_kept", "header", "misses")

    def __init__(self, header: GrpcHeader, body: bytes, start: int, contents: Sequence[Content]) -> None:
        self.header = header
        self.misses = 0
        """How many messages of that length have differed in more since one did not."""
        self._contents = tuple([(at - start, size) for _, at, size in contents])
        self._kept: list[tuple[int, int, bytes]] = []
        at = start
        for _, begin, size in [*contents, (body, len(body), 0)]:
            self._kept.append((at - start, begin - start, body[at:begin]))
            at = begin + size

    def contents(self, body: bytes | memoryview, start: int) -> list[Content] | None:
        """Return where the numbers of a message of that length are, None if it differs in more than these."""
        for begin, end, kept in self._kept:
            if body[start + begin : start + end] != kept:
                self.misses += 1
                return None
        self.misses = 0
        return [(body, start + at, size) for at, size in self._contents]


class TypedMessages:
    """The last message of each length, as few of them and as short but for their numbers as is said."""

    def __init__(self, capacity: int, most_bytes: int) -> None:
        self.by_size: dict[int, TypedMessage] = {}
        self._capacity = capacity
        self._most_bytes = most_bytes

    def put(self, header: GrpcHeader, body: bytes | memoryview, start: int) -> None:
        """Keep a checked message whose id ends at `start`, if its inputs are such, and no other is in use."""
        size = len(body) - start
        known = self.by_size.get(size)
        if known is not None and known.misses < _MOST_MISSES:
            return
        if not all([dtype.kind == "f" for _, _, dtype, _, _, _ in header.fields]):
            return
        body = bytes(body)
        contents = _contents(body, start)
        sizes = [byte_size for _, _, _, _, byte_size, _ in header.fields]
        if [each[2] for each in contents] != sizes or size - sum(sizes) > self._most_bytes:
            return
        if len(self.by_size) >= self._capacity:
            self.by_size.clear()
        self.by_size[size] = TypedMessage(header, body, start, contents)


def _contents(body: bytes, start: int) -> list[Content]:
    """Return where the numbers of each input are that has one row of floats."""
    found: list[Content] = []
    for number, wire_type, _, value, end in walk(body, start, len(body)):
        if number != INPUTS_FIELD or wire_type != LENGTH_DELIMITED:
            continue
        given = [field for field in walk(body, value, end) if field[0] == _CONTENTS]
        rows = [row for _, _, _, at, stop in given for row in walk(body, at, stop)]
        if len(given) == len(rows) == 1 and rows[0][0] in _PACKED and rows[0][1] == LENGTH_DELIMITED:
            found.append((body, rows[0][3], rows[0][4] - rows[0][3]))
    return found
