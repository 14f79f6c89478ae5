"""gRPC calls in raw frames: headers, length-prefixed messages in any pieces, and everything malformed about them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import pytest

from app.edge.header_forwarding import HeaderForwarding
from app.grpc.front import GrpcFront
from app.grpc.options import GrpcOptions
from app.http2 import frames
from app.http2.connection import Http2Connection
from app.http2.limits import Http2Limits
from deployments.lane.work_queue import WorkQueue
from tests.app.grpc.server import FakeService, request
from tests.app.http2 import wire as http2_wire
from tests.app.http2.wire import Frame, Transport, bodies, data, deliver, reset_codes, split

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
GOOD = {":method": "POST", ":scheme": "http", ":path": "", "content-type": "application/grpc", "te": "trailers"}


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


BODY = prefixed(request().SerializeToString())


class Wire:
    """A connection of a front on the running loop."""

    def __init__(self, options: GrpcOptions | None = None, packing: WorkQueue | None = None) -> None:
        self.service = FakeService()
        self.front = GrpcFront(self.service, options or GrpcOptions(), asyncio.get_running_loop(), packing=packing)
        self.transport = Transport()
        self.connection = Http2Connection(self.front)
        self.connection.connection_made(self.transport)
        self.coder = http2_wire.Wire()
        deliver(self.connection, frames.PREFACE + frames.settings({}))

    async def send(self, *pieces: bytes) -> list[Frame]:
        for piece in pieces:
            if not self.transport.closed:
                deliver(self.connection, piece)
        for _ in range(5):
            await asyncio.sleep(0)
        answered, self.transport.written = self.transport.written, b""
        return list(split(answered))

    def headers(self, stream_id: int, path: str | None = INFER, **changes: str | None) -> bytes:
        fields: dict[str, str | None] = {**GOOD, ":path": path}
        fields.update({name.replace("__", ":").replace("_", "-"): value for name, value in changes.items()})
        block = self.coder.encoder.encode([(n, v) for n, v in fields.items() if v is not None])
        return frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)

    def status(self, answer: list[Frame], stream_id: int = 1) -> dict[str, str]:
        """The headers and trailers of a stream, as one."""
        found: dict[str, str] = {}
        for each in answer:
            if each.kind == frames.HEADERS and each.stream_id == stream_id:
                found.update({str(name): str(value) for name, value in self.coder.decoder.decode(each.payload)})
        return found


def on_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_an_answer_is_headers_message_and_trailers() -> None:
    wire = Wire()
    got = await wire.send(wire.headers(1), data(1, BODY, end=True))
    got = [each for each in got if each.stream_id == 1]
    assert [each.kind for each in got] == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert wire.status(got) == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    message = bodies(got)[1]
    assert message[:5] == prefixed(message[5:])[:5]


@pytest.mark.parametrize("frame_size", [1, 3, 5, 6, 50])
@pytest.mark.parametrize("read_size", [1, 7, 1000])
@pytest.mark.parametrize("path", [INFER, STREAM])
def test_takes_a_message_in_pieces_of_any_size(frame_size: int, read_size: int, path: str) -> None:
    async def run() -> None:
        wire = Wire()
        sent = b"".join(data(1, BODY[i : i + frame_size]) for i in range(0, len(BODY), frame_size))
        sent = wire.headers(1, path) + sent + data(1, b"", end=True)
        got = await wire.send(*(sent[i : i + read_size] for i in range(0, len(sent), read_size)))
        assert wire.status(got)["grpc-status"] == "0"

    asyncio.run(run())


@on_loop
async def test_several_messages_in_one_frame() -> None:
    wire = Wire()
    got = await wire.send(wire.headers(1, STREAM), data(1, BODY * 3, end=True))
    assert wire.status(got)["grpc-status"] == "0"
    assert sum(each.kind == frames.DATA for each in got) >= 3


BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "13"),
    "half a prefix": (b"\0\0", "13"),
    "half a message": (BODY[:-1], "13"),
    "two messages": (BODY * 2, "13"),
    "an unknown flag": (b"\x02" + BODY[1:], "13"),
    "compressed, but not said how": (b"\x01" + BODY[1:], "13"),
    "a length of 4 GiB": (b"\0\xff\xff\xff\xff", "8"),
    "a length above the limit": (prefixed(bytes(2001)), "8"),
    "no ModelInferRequest": (prefixed(b"\xff\xff\xff"), "3"),
    "an empty one": (prefixed(b""), "3"),
}


@pytest.mark.parametrize(("body", "code"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bad_bodies(body: bytes, code: str) -> None:
    async def run() -> None:
        for whole in (True, False):
            wire = Wire(GrpcOptions(max_message_bytes=2000))
            pieces = [data(1, body, end=True)] if whole else [data(1, body), data(1, b"", end=True)]
            got = await wire.send(wire.headers(1), *pieces)
            status = wire.status(got)
            if body == prefixed(b"") and status["grpc-status"] == "5":
                continue  # a request for a model without a name
            assert status["grpc-status"] == code
            assert not wire.connection.streams
            got = await wire.send(wire.headers(3), data(3, BODY, end=True))
            assert wire.status(got, 3)["grpc-status"] == "0"

    asyncio.run(run())


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("body", [b"", b"junk", b"\x1f\x8b\x08junk", b"x" * 20_000])
def test_damaged_compression(encoding: str, body: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        got = await wire.send(wire.headers(1, grpc_encoding=encoding), data(1, prefixed(body, 1), end=True))
        while wire.connection.streams:
            got += await wire.send()
        got += await wire.send()
        assert wire.status(got)["grpc-status"] == "13"

    asyncio.run(run())


@on_loop
async def test_unknown_compression() -> None:
    wire = Wire()
    got = await wire.send(wire.headers(1, grpc_encoding="zstd"), data(1, BODY, end=True))
    status = wire.status(got)
    assert status["grpc-status"] == "12"
    assert status["grpc-accept-encoding"] == "identity, deflate, gzip"


REFUSED: dict[str, tuple[dict[str, str | None], dict[str, str]]] = {
    "GET": ({"__method": "GET"}, {":status": "405"}),
    "no content-type": ({"content_type": None}, {":status": "415"}),
    "JSON": ({"content_type": "application/json"}, {":status": "415"}),
    "gRPC-Web": ({"content_type": "application/grpc-web"}, {":status": "415"}),
    "a timeout of words": ({"grpc_timeout": "soon"}, {"grpc-status": "13"}),
    "a timeout of nine digits": ({"grpc_timeout": "123456789S"}, {"grpc-status": "13"}),
    "a negative timeout": ({"grpc_timeout": "-1S"}, {"grpc-status": "13"}),
    "no deadline left": ({"grpc_timeout": "0n"}, {"grpc-status": "4"}),
}


@pytest.mark.parametrize(("changes", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused_requests(changes: dict[str, str | None], expected: dict[str, str]) -> None:
    async def run() -> None:
        wire = Wire()
        held = prefixed(request(request_id="hold").SerializeToString())
        got = await wire.send(wire.headers(1, **changes), data(1, held, end=True))
        while wire.connection.streams:
            got += await wire.send()
        got += await wire.send()
        status = wire.status(got)
        assert {name: status[name] for name in expected} == expected
        assert not reset_codes(got)

    asyncio.run(run())


@on_loop
async def test_the_longest_timeout() -> None:
    wire = Wire()
    got = await wire.send(wire.headers(1, grpc_timeout="99999999H"), data(1, BODY, end=True))
    assert wire.status(got)["grpc-status"] == "0"


@pytest.mark.parametrize(
    "content_type",
    [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc+raw",
        "application/grpc+raw;a=b",
        "application/grpc;a=b",
    ],
)
def test_content_types(content_type: str) -> None:
    async def run() -> None:
        wire = Wire()
        got = await wire.send(wire.headers(1, content_type=content_type), data(1, BODY, end=True))
        assert wire.status(got)["grpc-status"] == "0"

    asyncio.run(run())


MALFORMED: dict[str, list[tuple[str, str]]] = {
    "no path": [(":method", "POST"), (":scheme", "http")],
    "an empty path": [(":method", "POST"), (":scheme", "http"), (":path", "")],
    "two paths": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), (":path", LIVE)],
    "an unknown pseudo-header": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), (":status", "200")],
    "a pseudo-header after a header": [(":method", "POST"), (":scheme", "http"), ("a", "b"), (":path", LIVE)],
    "capitals": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("Content-Type", "application/grpc")],
    "a name with a space": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("a b", "c")],
    "an empty name": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("", "c")],
    "a line break": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("a", "b\r\nc: d")],
    "a NUL": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("a", "b\0")],
    "connection": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("connection", "close")],
    "transfer-encoding": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("transfer-encoding", "chunked")],
    "te": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("te", "gzip")],
    "content-length": [(":method", "POST"), (":scheme", "http"), (":path", LIVE), ("content-length", "-1")],
    "two lengths": [
        (":method", "POST"), (":scheme", "http"), (":path", LIVE), ("content-length", "1"), ("content-length", "2")
    ],
}  # fmt: skip


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
def test_malformed_headers_reset_the_stream(fields: list[tuple[str, str]]) -> None:
    async def run() -> None:
        wire = Wire()
        block = wire.coder.encoder.encode(fields)
        got = await wire.send(frames.frame(frames.HEADERS, 5, 1, block))
        assert reset_codes(got) == {1: frames.PROTOCOL_ERROR}
        got = await wire.send(wire.headers(3, LIVE), data(3, prefixed(b""), end=True))
        assert wire.status(got, 3)["grpc-status"] == "0"

    asyncio.run(run())


@pytest.mark.parametrize("change", [-1, 0, 1])
def test_content_length_must_be_true(change: int) -> None:
    async def run() -> None:
        for pieces in ([BODY], [BODY[:10], BODY[10:]]):
            wire = Wire()
            sent = [data(1, piece, end=piece is pieces[-1]) for piece in pieces]
            got = await wire.send(wire.headers(1, content_length=str(len(BODY) + change)), *sent)
            if change:
                assert reset_codes(got) == {1: frames.PROTOCOL_ERROR}
                assert not bodies(got)
            else:
                assert wire.status(got)["grpc-status"] == "0"

    asyncio.run(run())


@pytest.mark.parametrize("first_bytes", [50, 3], ids=["prefix", "prefix in two pieces"])
def test_a_message_must_arrive_in_time(first_bytes: int) -> None:
    async def run() -> None:
        wire = Wire(GrpcOptions(http2=Http2Limits(body_timeout_s=60.0), min_message_bytes_per_s=10))
        begun = prefixed(bytes(100))[:50]
        await wire.send(wire.headers(1), data(1, begun[:first_bytes]), data(1, begun[first_bytes:]))
        now_s = asyncio.get_running_loop().time()
        wire.connection.sweep(now_s + 69.0)
        assert not wire.status(await wire.send())
        wire.connection.sweep(now_s + 71.0)
        got = await wire.send()
        assert wire.status(got)["grpc-status"] == "4"
        assert reset_codes(got) == {1: frames.NO_ERROR}

    asyncio.run(run())


@on_loop
async def test_a_stream_may_be_silent_between_messages() -> None:
    wire = Wire()
    await wire.send(wire.headers(1, STREAM), data(1, BODY))
    wire.connection.sweep(asyncio.get_running_loop().time() + 7000.0)
    got = await wire.send(data(1, BODY, end=True))
    assert wire.status(got) == {"grpc-status": "0"}


@on_loop
async def test_an_error_text_is_short_and_percent_encoded() -> None:
    wire = Wire()
    lost = prefixed(request("é%\n" * 5000).SerializeToString())
    got = await wire.send(wire.headers(1), data(1, lost, end=True))
    text = wire.status(got)["grpc-message"]
    assert text.isprintable()
    assert text.isascii()
    assert text.startswith("Request for unknown model: '%C3%A9%25%0A")
    assert text.endswith("...")
    assert 800 < len(text) <= 1024
    assert unquote(text, errors="strict").rstrip(".").strip("é%\n") == "Request for unknown model: '"


FORWARDING = GrpcOptions(forwarding=HeaderForwarding("^(x-|timeout|triton_|grpc-|content-)"))


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_matching_metadata_become_parameters(path: str) -> None:
    async def run() -> None:
        wire = Wire(FORWARDING)
        message = request()
        message.parameters["x-tenant"].string_param = "the client's own"
        message.parameters["other"].int64_param = 7
        sent = prefixed(message.SerializeToString())
        await wire.send(wire.headers(1, path, x_tenant="å", x_user="b", y_other="c"), data(1, sent, end=True))
        (got,) = wire.service.requests
        forwarded = {name: value.string_param or value.int64_param for name, value in got.parameters.items()}
        assert forwarded == {"x-tenant": "å", "x-user": "b", "other": 7}
        assert list(got.raw_input_contents) == list(request().raw_input_contents)

    asyncio.run(run())


@on_loop
async def test_metadata_with_a_meaning_of_their_own_cannot_be_forwarded() -> None:
    wire = Wire(FORWARDING)
    got = await wire.send(wire.headers(1, timeout="5"), data(1, BODY, end=True))
    assert wire.status(got)["grpc-status"] == "3"
    said = "Header 'timeout' is reserved for Triton usage and cannot be forwarded."
    assert wire.status(got)["grpc-message"] == said
    got = await wire.send(wire.headers(3, LIVE, timeout="5"), data(3, prefixed(b""), end=True))
    assert wire.status(got, 3)["grpc-status"] == "0"


@on_loop
async def test_an_answer_for_a_client_without_header_table() -> None:
    wire = Wire()
    got = await wire.send(frames.settings({frames.SETTINGS_HEADER_TABLE_SIZE: 0}))
    wire.coder.decoder.max_allowed_table_size = 0
    for stream_id in (1, 3):
        got = await wire.send(wire.headers(stream_id), data(stream_id, BODY, end=True))
        assert wire.status(got, stream_id)["grpc-status"] == "0"


@on_loop
async def test_answers_after_the_client_has_gone_are_dropped() -> None:
    wire = Wire()
    held = prefixed(request(request_id="hold").SerializeToString())
    await wire.send(wire.headers(1), data(1, held, end=True))
    release = wire.service.held["hold"]
    await wire.send(frames.rst_stream(1, frames.CANCEL))
    assert wire.service.cancelled == ["hold"]
    release()
    assert await wire.send() == []


@on_loop
async def test_memory_of_large_messages_is_given_back() -> None:
    wire = Wire(GrpcOptions(http2=Http2Limits(max_buffered_bytes=1 << 20, initial_window_bytes=65_535)))
    big = prefixed(bytes(900_000))
    await wire.send(wire.headers(1), data(1, big[:1000]), wire.headers(3), data(3, big[:1000]))
    grants = {each.stream_id for each in await wire.send()}
    assert grants == set()
    assert wire.connection.streams[1].credit_bytes > 800_000
    assert wire.connection.streams[3].credit_bytes < 65_535
    got = await wire.send(frames.rst_stream(1, frames.CANCEL))
    assert [(each.kind, each.stream_id) for each in got] == [(frames.WINDOW_UPDATE, 3)]
    got = await wire.send(data(3, big[1000:], end=True))
    assert wire.status(got, 3)["grpc-status"] == "3"
    assert not wire.connection.streams


def test_options_are_those_of_triton() -> None:
    limits: Any = GrpcOptions().http2
    assert (limits.keepalive_time_s, limits.keepalive_timeout_s) == (7200.0, 20.0)
    assert (limits.min_ping_interval_s, limits.max_ping_strikes) == (300.0, 2)


@pytest.mark.parametrize("frame_bytes", [1_000, 16_384, 100_000, 1 << 20])
@pytest.mark.parametrize("read_bytes", [16_393, 100_001, 256_000])
def test_puts_a_large_message_together_whatever_the_frames_and_reads_are(frame_bytes: int, read_bytes: int) -> None:
    async def run() -> None:
        wire = Wire()
        await wire.send(
            frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 24}) + frames.window_update(0, 1 << 24)
        )
        values = [float(number) for number in range(200_000)]
        message = request(values=values).SerializeToString()
        body = prefixed(message)
        pieces = [body[start : start + frame_bytes] for start in range(0, len(body), frame_bytes)]
        sent = wire.headers(1) + b"".join(data(1, piece, end=piece is pieces[-1]) for piece in pieces)
        answer = await wire.send(*(sent[start : start + read_bytes] for start in range(0, len(sent), read_bytes)))
        assert wire.status(answer)["grpc-status"] == "0"
        assert request(values=values).raw_input_contents[0] in bodies(answer)[1]

    asyncio.run(run())


def share(*wires: Wire) -> None:
    """Have connections be those of one port."""
    for wire in wires[1:]:
        wire.connection.application = wires[0].front


@on_loop
async def test_requests_that_have_come_in_part_are_bounded_over_all_connections() -> None:
    options = GrpcOptions(max_message_bytes=1 << 20, max_total_message_bytes=3 << 20)
    first, second = Wire(options), Wire(options)
    share(first, second)
    part, rest = prefixed(bytes(1 << 20))[: 900 << 10], prefixed(bytes(1 << 20))[900 << 10 :]
    for wire, stream_id, come in ((first, 1, part), (first, 3, part), (second, 1, part), (second, 3, part[:1000])):
        assert wire.status(await wire.send(wire.headers(stream_id), data(stream_id, come)), stream_id) == {}
    small = data(5, BODY[:1]) + data(5, BODY[1:], end=True)
    got = await second.send(second.headers(5), small)
    assert second.status(got, 5)["grpc-status"] == "0"
    got = await second.send(second.headers(7), data(7, part))
    assert second.status(got, 3) == {}, "it is not the largest"
    refused = second.status(got, 1) | second.status(got, 7)
    assert refused["grpc-status"] == "14"
    assert "too many bytes of request bodies are under way" in unquote(refused["grpc-message"])
    for wire, stream_id in ((first, 1), (first, 3)):
        got = await wire.send(data(stream_id, rest, end=True))
        assert wire.status(got, stream_id)["grpc-status"] == "3"  # bytes that are no request, and all of them came
    second.connection.connection_lost(None)
    assert first.front.bodies.used_bytes == 0


@on_loop
async def test_answers_that_clients_do_not_take_are_bounded_over_all_connections() -> None:
    options = GrpcOptions(max_message_bytes=1 << 20, max_total_message_bytes=2 << 20)
    wires = [Wire(options) for _ in range(4)]
    share(*wires)
    large = prefixed(request(values=[0.0] * 200_000).SerializeToString())
    for wire in wires:
        pieces = [data(1, large[at : at + 16_384]) for at in range(0, len(large), 16_384)]
        no_window = frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0})
        await wire.send(no_window, wire.headers(1), *pieces, data(1, b"", end=True))
    assert [wire.transport.closed for wire in wires] == [True, True, False, False]


@on_loop
async def test_an_answer_that_is_in_the_buffer_of_a_socket_counts_as_one_that_clients_do_not_take() -> None:
    wires = [Wire(GrpcOptions(max_message_bytes=1 << 20, max_total_message_bytes=2 << 20)) for _ in range(3)]
    share(*wires)
    for wire in wires:
        wire.transport.unsent_bytes = 900 << 10
        wire.connection.pause_writing()
        await wire.send()
    assert [wire.transport.closed for wire in wires] == [True, False, False]


@pytest.mark.parametrize("size", [100, 2 << 20])
def test_a_message_of_which_the_client_never_says_that_it_is_all_is_given_up(size: int) -> None:
    async def run() -> None:
        wire = Wire()
        message = prefixed(bytes(size))
        await wire.send(wire.headers(1), *(data(1, message[at : at + 16_384]) for at in range(0, len(message), 16_384)))
        assert wire.front.bodies.used_bytes == size
        now_s = wire.front.loop.time()
        wire.connection.sweep(now_s + 59)
        assert wire.status(await wire.send()) == {}
        wire.connection.sweep(now_s + 62)
        assert wire.status(await wire.send())["grpc-status"] == "4"
        wire.connection.sweep(now_s + 63)
        assert wire.front.bodies.used_bytes == 0

    asyncio.run(run())


@on_loop
async def test_a_request_that_is_complete_has_as_long_as_its_model_takes() -> None:
    wire = Wire()
    held = prefixed(request(request_id="hold").SerializeToString())
    await wire.send(wire.headers(1), data(1, held))
    await wire.send(data(1, b"", end=True))
    wire.connection.sweep(wire.front.loop.time() + 1000)
    wire.service.held["hold"]()
    assert wire.status(await wire.send())["grpc-status"] == "0"


@on_loop
async def test_a_call_that_is_over_holds_no_memory_for_its_message_while_answers_wait() -> None:
    wire = Wire(GrpcOptions(http2=Http2Limits(max_buffered_bytes=1 << 20, initial_window_bytes=65_535)))
    big = prefixed(bytes(900_000))
    no_window = frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0})
    await wire.send(no_window, wire.headers(1), data(1, big[:1000]))
    await wire.send(wire.headers(3, STREAM, grpc_timeout="1m"), data(3, BODY + big[:1000]))
    await asyncio.sleep(0.01)
    assert wire.connection.streams[3].queued_bytes, "the answer waits, and the status behind it"
    await wire.send(frames.rst_stream(1, frames.CANCEL))
    got = await wire.send(wire.headers(5), data(5, big[:1000]))
    assert [(each.kind, each.stream_id) for each in got] == [(frames.WINDOW_UPDATE, 5)]
