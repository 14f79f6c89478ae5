"""ModelInfer: from the client's bytes to the target's, and back, with nothing parsed but where it goes."""

import struct
from collections.abc import Sequence
from typing import Any, Final

from app.grpc.call import Call
from app.grpc.head import GrpcHead
from app.grpc.response_compressor import ResponseCompressor
from app.grpc.status import OK, OK_TRAILERS, RESPONSE
from app.grpc.unary_call import UnaryCall
from app.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from app.http2.open_connection import OpenConnection
from app.trace.traced_target import under
from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from deployments.lane.wire import GRPC
from protocol.errors import ServingError

# HEADERS, the head of a DATA frame, and the prefix of the message in it.
_BEFORE: Final = struct.Struct(f">BHBBI{len(RESPONSE)}sBHBBIBI")
_AFTER: Final = struct.Struct(f">BHBBI{len(OK_TRAILERS)}s")
_PREFIX_BYTES: Final = 5


class InferCall(UnaryCall):
    """A call of ModelInfer; it is the sink of its own request."""

    __slots__ = ("_target", "_token")

    def __init__(self, connection: OpenConnection, stream_id: int, head: GrpcHead) -> None:
        super().__init__(connection, stream_id, head)
        self._target: Target | None = None
        self._token: Any = None

    def dispatch(self, message: Buffer) -> None:
        """Send the message to its model."""
        try:
            target = self.context.routes.find(message)
        except ServingError as error:
            self.fail(error)
            return
        if self.head.trace_parent is not None:
            target = under(target, self.head.trace_parent)
        forwarded = self.head.forwarded
        self._target = target
        token = target.submit((message, forwarded) if forwarded else (message,), None, self, GRPC)
        if not self.done:
            self._token = token

    def under_way(self) -> Target | None:
        """Return the model that has the request."""
        return self._target

    def cancelled(self) -> None:
        """Give the request up."""
        if self._target is not None:
            target, self._target = self._target, None
            token, self._token = self._token, None
            target.cancel(token)

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Write the response and the status."""
        if self.done:
            return
        size = 0
        for part in parts:
            size += len(part)
        self._target = self._token = None  # which has the request's message, and leads back here
        connection = self.connection
        if not connection.table_update and not self.head.response_encoding:
            stream_id = self.stream_id
            whole = size + _PREFIX_BYTES
            before = _BEFORE.pack(
                0, len(RESPONSE), HEADERS, END_HEADERS, stream_id, RESPONSE,
                whole >> 16 & 0xFF, whole & 0xFFFF, DATA, 0, stream_id, 0, size & 0xFFFFFFFF,
            )  # fmt: skip
            after = _AFTER.pack(0, len(OK_TRAILERS), HEADERS, END_HEADERS | END_STREAM, stream_id, OK_TRAILERS)
            if connection.sender.send_whole(self, before, parts, whole, after):
                self._end()
                connection.close_stream(self)
                return
        send_response(self, parts, size)
        self.finish(OK, "")

    def on_error(self, error: ServingError) -> None:
        """Write the status of a request that failed."""
        target, self._target = self._target, None
        self._token = None
        self.finish(error.grpc_code, error.message, target)


def send_response(call: Call, parts: Sequence[Buffer], size: int) -> None:
    """Send a response message, compressed if that was agreed."""
    encoding = call.head.response_encoding
    if not encoding:
        call.send_message(parts, size)
        return
    if call.compressor is None:
        level = call.context.options.infer_response_compression_level
        call.compressor = ResponseCompressor(call, encoding, level)
    call.compressor.send(parts, size)
