"""Header blocks of gRPC answers: constant bytes, without HPACK's dynamic table, percent-encoded messages."""

from typing import Final
from urllib.parse import quote, unquote_to_bytes

OK: Final = 0
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
STOPPING: Final = "server is shutting down"
SERVERS_FAULT: Final = frozenset((INTERNAL, UNAVAILABLE))

# All printable ASCII but the percent sign.
_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class CallError(Exception):
    """A call ends with this status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header as a literal without indexing (RFC 7541 §6.2.2), not Huffman-coded."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    encoded = bytearray((127,))
    size -= 127
    while size > 127:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def percent_encoded(message: str) -> bytes:
    """Return a grpc-message as it travels."""
    return quote(message.encode("utf-8", "replace"), safe=_SAFE).encode("ascii")


# :status 200 is entry 8 of the static table, content-type the name of entry 31.
RESPONSE: Final = b"\x88\x0f\x10\x10application/grpc"
OK_TRAILERS: Final = literal(b"grpc-status", b"0")
ACCEPT_ENCODING: Final = literal(b"grpc-accept-encoding", b"identity, deflate, gzip")


def trailers(code: int, message: str, max_bytes: int) -> bytes:
    """Return the block that ends a call."""
    if not code and not message:
        return OK_TRAILERS
    block = literal(b"grpc-status", b"%d" % code)
    if message:
        # A character takes a byte at least: what is behind so many is not sent, and would take its time.
        block += literal(b"grpc-message", _shortened(percent_encoded(message[: max_bytes + 1]), max_bytes))
    return block


def _shortened(encoded: bytes, max_bytes: int) -> bytes:
    if len(encoded) <= max_bytes:
        return encoded
    # Neither a %XX nor a character is cut in two.
    whole, _, code = encoded[: max_bytes - 3].rpartition(b"%")
    kept = encoded[: max_bytes - 3] if len(code) >= 2 or not whole else whole
    return percent_encoded(unquote_to_bytes(kept).decode("utf-8", "ignore")) + b"..."


def http_refusal(http_status: int) -> bytes:
    """Return the block that answers what is no gRPC call at all."""
    return literal(b":status", b"%d" % http_status) + literal(b"grpc-status", b"2")
