"""One HTTP/2 connection: cuts what arrives into frames and hands it to streams; what is due leaves together.

A request whose header block was seen before and whose DATA comes in one frame costs two dictionary look-ups here.
"""

import asyncio
from typing import Final, cast

from app.http2 import frames
from app.http2.frame_budget import FrameBudget
from app.http2.frame_rest import FrameRest, check_size
from app.http2.frames import DATA, END_HEADERS, END_STREAM, FRAME, FRAME_SIZE, HEADERS, PADDED, Http2Error
from app.http2.open_connection import Application, Head, OpenConnection
from app.http2.peer_settings import apply_settings
from app.http2.reset_budget import LASTING_S
from app.http2.sender import Sender
from app.http2.skipped_ids import SkippedIds
from app.http2.stream import Stream
from deployments.lane.frames import Buffer

# The connection's own receive window is as large as it can be and replenished in bulk: streams bound the memory.
_REPLENISH_BYTES: Final = 16 << 20
# Reads up to this size are copied out of the read buffer, so that what they hold can be cut out and kept.
_COPIED_BYTES: Final = 1 << 14
# DATA that ends no request is counted below this size.
_SMALL_DATA_BYTES: Final = 16
# DATA of this size goes to its stream as a view.
_VIEW_BYTES: Final = 1 << 14
_WRITE_BUFFER_BYTES: Final = 1 << 19
# What a connection may do before others get their turn: a frame is one unit, and so is every 64 bytes that end a
# request, whose fields may have to be walked over. All streams that may be open can begin in one turn.
_TURN_UNITS: Final = 1024
_UNIT_BITS: Final = 6
_MAX_REQUEST_UNITS: Final = 256
# Of a header block that is decoded, and every so many bytes of it: the Huffman code is read byte by byte.
_DECODED_UNITS: Final = 8
_DECODED_UNIT_BITS: Final = 5
# Blocks above this size are decoded one in a turn of all connections; calls with many metadata have less.
_LARGE_BLOCK_BYTES: Final = 4 << 10
_HEADER_KINDS: Final = (HEADERS, frames.CONTINUATION)
# Settings, and open streams whose windows a new initial window moves, that cost a token of a frame.
_SETTINGS_PER_TOKEN: Final = 8
_STREAMS_PER_TOKEN: Final = 32


class Http2Connection(OpenConnection):
    """The server's side of a connection."""

    def __init__(self, application: Application) -> None:
        super().__init__(application)
        limits = self.limits
        self._heads = self.blocks.known
        self._budget = FrameBudget(limits, self._opened_s)
        self._greeted = False
        self._block: tuple[int, int, list[bytes]] | None = None
        self._data_left = 0
        self._data_stream_id = 0
        self._data_flags = 0
        self._unreturned_bytes = 0
        self._returned_bytes = 0
        self._skipped = SkippedIds()

    # -- the transport's side --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the settings; refuse a connection too many, and TLS without ALPN's h2 (RFC 9113 §3.2)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.sender = Sender(self._transport, self.loop)
        application, limits = self.application, self.limits
        accepted = application.connections.add(self, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.fail(Http2Error(frames.INADEQUATE_SECURITY, "ALPN did not choose h2"))
            return
        settings = {
            frames.SETTINGS_MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            frames.SETTINGS_INITIAL_WINDOW_SIZE: limits.initial_window_bytes,
            frames.SETTINGS_MAX_FRAME_SIZE: limits.max_frame_bytes,
            frames.SETTINGS_MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        window = frames.window_update(0, frames.MAX_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES)
        self.sender.write(frames.settings(settings) + window)
        if not accepted and application.connections.stopping:
            self.fail(Http2Error(frames.NO_ERROR, "server is shutting down"))
        elif not accepted:
            self.fail(Http2Error(frames.ENHANCE_YOUR_CALM, "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is under way."""
        self.closing = True
        self._transport = None
        self.application.connections.discard(self)
        self.application.slow_readers.discard(self)
        self._abort_streams()
        self._note_held()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: the same place for all connections, each is done with it at once."""
        return self.application.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that are in the buffer; many are not copied out of it first."""
        data = self.application.read_buffer[:nbytes]
        self._received(data if nbytes > _COPIED_BYTES else bytes(data))

    def _received(self, data: Buffer) -> None:
        if self.closing:
            return
        self._pings.heard = True
        sender = self.sender
        sender.corked = True
        try:
            if not self._greeted:
                data = self._greet(data)
            elif self._data_left:
                data = self._continue_data(data)
            elif self._rest is not None:
                data = self._rest.add(data)
                if not data:
                    return
            self._feed(data)
        except Http2Error as error:
            self.fail(error)
        finally:
            if self.incomplete or self._held_bytes:
                self._note_held()
            sender.corked = False
            sender.flush()

    def _greet(self, data: Buffer) -> Buffer:
        if self._rest is not None:
            data = self._rest.add(data)
        self._greeted = frames.is_greeting(data)
        if self._greeted:
            return data[len(frames.PREFACE) :]
        self._rest = FrameRest(data, 0) if data else None
        return b""

    # -- frames ----------------------------------------------------------------------------------------------------

    def _feed(self, data: Buffer) -> None:
        """Work through whole frames; DATA is handed on in pieces as they come."""
        if not self._greeted:
            return
        unpack, streams, heads = FRAME.unpack_from, self.streams, self._heads
        self.extra_units = 0
        left = _TURN_UNITS
        view = memoryview(data)
        max_frame_bytes = self.limits.max_frame_bytes
        offset, end, received, awaited_bytes = 0, len(data), 0, 0
        while end - offset >= FRAME_SIZE:
            high, low, kind, flags, stream_id = unpack(data, offset)
            length = high << 16 | low
            if stream_id > frames.MAX_STREAM_ID:
                stream_id &= frames.MAX_STREAM_ID
            start = offset + FRAME_SIZE
            stop = start + length
            if length > max_frame_bytes or self._block is not None:
                self._check(kind, stream_id, length)
            if kind == DATA and not flags & PADDED:
                if stop > end:
                    self._begin_data(stream_id, flags, length, memoryview(data)[start:])
                    offset = end
                    break
                stream = streams.get(stream_id)
                received += length
                if stream is None or stream.peer_ended or not length:
                    self._odd_data(stream, stream_id, flags, length)
                else:
                    piece = bytes(data[start:stop]) if length < _VIEW_BYTES else view[start:stop]
                    if flags & END_STREAM:
                        left -= min(length >> _UNIT_BITS, _MAX_REQUEST_UNITS)
                        stream.receive(piece, True)
                    else:
                        if length < _SMALL_DATA_BYTES:
                            self._count_small_data(received)
                        stream.receive(piece, False)
                        if length >= _VIEW_BYTES and not self.closing:
                            run_end = stream.receive_run(view, stop, view[offset:start], length)
                            received += (run_end - stop) // (FRAME_SIZE + length) * length
                            stop = run_end
            elif stop > end:
                check_size(kind, length, self.limits)
                if kind == DATA:
                    self._check_opened(stream_id)
                awaited_bytes = stop - offset
                break
            elif kind == HEADERS and flags & ~END_STREAM == END_HEADERS:
                block = bytes(data[start:stop])
                head = heads.get(block)
                if head is None and not self._may_decode(length):
                    self._wait()
                    break
                self._open(stream_id, flags, head, block)
            elif kind in _HEADER_KINDS and flags & END_HEADERS and not self._may_decode(length):
                self._wait()
                break
            else:
                received += self._take(kind, flags, stream_id, bytes(data[start:stop]))
            if self.closing:
                return
            offset = stop
            left -= 1
            if left < self.extra_units:
                self._rest_from(data, offset)
                break
        self._note_progress(data, offset, received, awaited_bytes)

    def _rest_from(self, data: Buffer, offset: int) -> None:
        """Leave what follows for the next turn of the loop, and read nothing until then."""
        if offset < len(data) and not self._resting and self._transport is not None:
            self._resting = True
            self._transport.pause_reading()
            self.loop.call_soon(self._go_on)

    def _may_decode(self, length: int) -> bool:
        """Whether the block that ends with a frame of this length is short, or has its turn."""
        pieces = () if self._block is None else self._block[2]
        return length + sum(map(len, pieces)) <= _LARGE_BLOCK_BYTES or self.application.decoding_turns.take()

    def _wait(self) -> None:
        """Leave what follows for the turn that the next large block of this connection gets."""
        self._resting = True
        if self._transport is not None:
            self._transport.pause_reading()
        self.application.decoding_turns.wait(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._received(b"")
        self._read_on()

    def _note_progress(self, data: Buffer, offset: int, received: int, awaited_bytes: int) -> None:
        """Keep what is left, and set the deadline for the rest of it."""
        self._rest = FrameRest(memoryview(data)[offset:], awaited_bytes) if offset < len(data) else None
        if self._rest is not None or self._data_left or self._block is not None:
            if offset or not self._deadline_s:
                self._deadline_s = self.loop.time() + self.limits.body_timeout_s
        else:
            self._deadline_s = 0.0
        self._unreturned_bytes += received
        if self._unreturned_bytes >= _REPLENISH_BYTES:
            self.sender.write(frames.window_update(0, self._unreturned_bytes))
            self._returned_bytes += self._unreturned_bytes
            self._unreturned_bytes = 0

    def _check(self, kind: int, stream_id: int, length: int) -> None:
        if length > self.limits.max_frame_bytes:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "frame too large")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise Http2Error(frames.PROTOCOL_ERROR, "header block not continued")

    def _begin_data(self, stream_id: int, flags: int, length: int, data: Buffer) -> None:
        self._data_stream_id, self._data_flags, self._data_left = stream_id, flags, length
        if stream_id not in self.streams:
            self._odd_data(None, stream_id, flags, length)
        self._continue_data(data)

    def _continue_data(self, data: Buffer) -> Buffer:
        """Hand on the next piece of a DATA frame; returns what follows the frame."""
        size = len(data)
        piece = data if size <= self._data_left else memoryview(data)[: self._data_left]
        self._data_left -= len(piece)
        self._unreturned_bytes += len(piece)
        stream = self.streams.get(self._data_stream_id)
        if stream is not None:
            if stream.peer_ended:
                self.reset(stream, frames.STREAM_CLOSED)
            elif piece:
                stream.receive(piece, not self._data_left and self._data_flags & END_STREAM != 0)
        return data[len(piece) :]

    def _odd_data(self, stream: Stream | None, stream_id: int, flags: int, length: int) -> None:
        """Take DATA that is empty, or belongs to no open stream."""
        if stream is None:
            self._check_opened(stream_id)
            if stream_id not in self.cut_short:
                self._count_reset()
                self.sender.write(frames.rst_stream(stream_id, frames.STREAM_CLOSED))
            elif length < _SMALL_DATA_BYTES:
                self._count_small_data(length)
            return
        if stream.peer_ended:
            self.reset(stream, frames.STREAM_CLOSED)
        elif flags & END_STREAM:
            stream.receive(b"", True)
        else:
            self._count_control()

    def _check_opened(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self._last_id:
            raise Http2Error(frames.PROTOCOL_ERROR, "DATA on an idle stream")

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> int:
        """Take any frame but the two common ones; returns the size of DATA."""
        frames.check_payload_size(kind, len(payload))
        if kind == DATA:
            return self._padded_data(stream_id, flags, payload)
        if kind == HEADERS:
            self._take_headers(stream_id, flags, payload)
        elif kind == frames.CONTINUATION:
            self._take_continuation(flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._take_window_update(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._take_settings(flags, stream_id, payload)
        elif kind == frames.PING:
            self._take_ping(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._take_rst_stream(stream_id, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(frames.PROTOCOL_ERROR, "a client cannot push")
        elif kind == frames.GOAWAY and stream_id:
            raise Http2Error(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        else:
            self._count_control()
        return 0

    def _padded_data(self, stream_id: int, flags: int, payload: bytes) -> int:
        data = frames.unpadded(payload)
        stream = self.streams.get(stream_id)
        if stream is None or stream.peer_ended:
            self._odd_data(stream, stream_id, flags, len(payload))
        elif stream.spend(len(payload) - len(data)):
            stream.grant(len(payload) - len(data))
            if flags & END_STREAM:
                stream.receive(data, True)
            elif data:
                if len(payload) < _SMALL_DATA_BYTES:
                    self._count_small_data(0)
                stream.receive(data, False)
            else:
                self._count_control()
        return len(payload)

    # -- requests --------------------------------------------------------------------------------------------------

    def _take_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        block = frames.header_block(flags, payload)
        if flags & END_HEADERS:
            self._open(stream_id, flags, self._heads.get(block), block)
        else:
            self._block = (stream_id, flags, [block])

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        stream_id, first_flags, pieces = self._block
        pieces.append(payload)
        limits = self.limits
        if len(pieces) > limits.max_continuation_count + 1 or sum(map(len, pieces)) > limits.max_header_block_bytes:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            self._block = None
            block = b"".join(pieces)
            self._open(stream_id, first_flags, self._heads.get(block), block)

    def _open(self, stream_id: int, flags: int, head: Head | None, block: bytes) -> None:
        """Open a stream, or take the trailers of one."""
        if stream_id <= self._last_id or not stream_id & 1:
            self._take_trailers(stream_id, flags, block)
            return
        if head is None:
            if len(block) > self.limits.max_header_block_bytes:
                raise Http2Error(frames.ENHANCE_YOUR_CALM, "header block too large")
            self._count_block(block)
            head = self.blocks.decode(block)
        if stream_id > self._last_id + 2:
            self._skipped.add(range(self._last_id + 2, stream_id, 2))
        self._last_id = stream_id
        if self._going:
            self.cut_short.append(stream_id)
            self._count_control()
            return
        self._accepted_id = stream_id
        streams = self.streams
        if len(streams) >= self.max_streams:
            self._count_control()
            self.cut_short.append(stream_id)
            self.sender.write(frames.rst_stream(stream_id, frames.REFUSED_STREAM))
            return
        stream = head.open(self, stream_id)
        if stream is None:
            self._count_reset()
            self.cut_short.append(stream_id)
            self.sender.write(frames.rst_stream(stream_id, frames.PROTOCOL_ERROR))
            return
        streams[stream_id] = stream
        if flags & END_STREAM:
            stream.receive(b"", True)

    def _check_closed(self, stream_id: int) -> None:
        """Refuse HEADERS on a stream that the client had ended, or that it never opened (RFC 9113 §5.1, §5.1.1)."""
        if stream_id in self.cut_short:
            return
        if not stream_id & 1 or stream_id in self._skipped:
            raise Http2Error(frames.PROTOCOL_ERROR, "HEADERS on a stream that cannot be opened")
        raise Http2Error(frames.STREAM_CLOSED, "HEADERS on a closed stream")

    def _take_trailers(self, stream_id: int, flags: int, block: bytes) -> None:
        stream = self.streams.get(stream_id)
        if len(block) > self.limits.max_header_block_bytes:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "header block too large")
        if stream is None:
            self._check_closed(stream_id)
            self._count_control()
        self._count_block(block)
        self.blocks.skip(block)
        if stream is None:
            return  # sent before the client knew that the stream was over (RFC 9113 §5.1)
        if stream.peer_ended:
            self.reset(stream, frames.STREAM_CLOSED)
        elif not flags & END_STREAM:
            self.reset(stream, frames.PROTOCOL_ERROR)
        else:
            stream.receive(b"", True)

    # -- control ---------------------------------------------------------------------------------------------------

    def _count_block(self, block: bytes) -> None:
        self.extra_units += _DECODED_UNITS + (len(block) >> _DECODED_UNIT_BITS)

    def _count_control(self, tokens: int = 1) -> None:
        self._budget.take_control(self.loop.time(), tokens)

    def _count_small_data(self, received: int) -> None:
        """Take a small frame of DATA; `received` counts what this read has brought apart from what was counted."""
        received += self._returned_bytes + self._unreturned_bytes
        self._budget.take_small_data(self.loop.time(), received, self._request_count())

    def _count_update(self) -> None:
        self._budget.take_update(self.loop.time(), self.sender.sent_bytes, self._request_count())

    def _request_count(self) -> int:
        """Return how many requests there were so far; their ids are odd numbers."""
        return (self._last_id + 1 >> 1) - self._skipped.count

    def _count_reset(self) -> None:
        if not self._resets.take_early(self.loop.time(), self._request_count()):
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "too many streams reset")

    def _take_window_update(self, stream_id: int, payload: bytes) -> None:
        self._count_update()
        size = int.from_bytes(payload, "big") & frames.MAX_WINDOW_BYTES
        if not stream_id:
            if not size:
                raise Http2Error(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            if not self.sender.grow(size):
                raise Http2Error(frames.FLOW_CONTROL_ERROR, "window overflow")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if not stream_id & 1 or stream_id > self._last_id:
                raise Http2Error(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        elif not size:
            self.reset(stream, frames.PROTOCOL_ERROR)
        elif not self.sender.grow_stream(stream, size):
            self.reset(stream, frames.FLOW_CONTROL_ERROR)

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise Http2Error(frames.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
            self.max_streams = self.limits.max_concurrent_streams
            self._count_control()
            return
        values = frames.parse_settings(payload)
        moved = len(self.streams) if any(name == frames.SETTINGS_INITIAL_WINDOW_SIZE for name, _ in values) else 0
        self._count_control(1 + len(values) // _SETTINGS_PER_TOKEN + moved // _STREAMS_PER_TOKEN)
        # First: a client counts DATA that comes before the acknowledgement against its old windows.
        self.sender.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self.table_update = apply_settings(values, self.sender, tuple(self.streams.values())) or self.table_update

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(frames.PROTOCOL_ERROR, "PING on a stream")
        if flags & frames.ACK:
            self._count_control()
            self.ping_answered(payload)
            return
        data_sent, self.sender.data_sent = self.sender.data_sent, False
        if self._pings.too_many(self.loop.time(), data_sent, bool(self.streams)):
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "too_many_pings")
        self._count_control(0 if data_sent else 1)  # who measures the path pings whenever something comes
        self.sender.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _take_rst_stream(self, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1 or stream_id > self._last_id:
            raise Http2Error(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        stream = self.streams.get(stream_id)
        if stream is None:  # sent before the client knew that the stream was over
            self._count_update()
            return
        if not stream.due and self.loop.time() - stream.opened_s < LASTING_S:
            self._count_reset()
        self._drop(stream)
        stream.aborted()
