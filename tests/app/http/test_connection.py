import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.http.connection import HttpConnection
from app.http.limits import HttpLimits
from protocol.errors import Unavailable
from tests.app.http.wire import Transport, Wire, infer


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_answers_an_inference_request() -> None:
    wire = Wire()
    answer = await wire.send(infer(b'{"inputs":[]}'))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: application/json\r\n" in answer
    assert answer.endswith(b'\r\n\r\n{"inputs":[]}')


@on_loop
async def test_says_where_the_json_header_of_a_binary_response_ends() -> None:
    wire = Wire()
    answer = await wire.send(infer(b"{}\0\0", extra=b"Inference-Header-Content-Length: 2\r\n"))
    assert b"Inference-Header-Content-Length: 2\r\n" in answer
    assert b"Content-Type: application/octet-stream\r\n" in answer


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_takes_a_request_in_pieces_of_any_size(size: int) -> None:
    async def run() -> None:
        wire = Wire()
        for _ in range(2):  # the second time the head is a known one
            data = infer(b"0123456789")
            answer = await wire.send(*(data[i : i + size] for i in range(0, len(data), size)))
            assert answer.endswith(b"0123456789")
        assert wire.target.bodies == [b"0123456789"] * 2

    asyncio.run(run())


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a",
        "a.b_c:80",
        "192.0.2.1:8000",
        "[::1]",
        "[::1]:8000",
        "[fe80::1%eth0.1]:8000",
        "[fe80::1%25eth0]",
        "outbound|8000||a.b.svc",
    ],
)
def test_takes_every_form_of_a_host(host: str) -> None:
    async def run() -> None:
        wire = Wire()
        assert b"200 OK" in await wire.send(b"GET /v2 HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode())

    asyncio.run(run())


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
def test_space_behind_the_value_of_a_field_is_no_part_of_it(space: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        lines = (
            b"POST /v2/models/echo/infer HTTP/1.1",
            b"Host: localhost:8000" + space,
            b"Expect: 100-continue" + space,
            b"Inference-Header-Content-Length: 2" + space,
            b"Content-Length: 4" + space,
        )
        answer = await wire.send(b"\r\n".join(lines) + b"\r\n\r\n{}ab")
        assert answer.endswith(b"\r\n\r\n{}ab")
        assert wire.target.json_lengths == [2]

    asyncio.run(run())


@on_loop
async def test_puts_a_chunked_body_together() -> None:
    wire = Wire()
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await wire.send(head + b"3\r\nabc\r\n", b"4;x=y\r\nde", b"fg\r\n0\r\nTrailer: t\r\n\r\n", infer(b"next"))
    assert wire.target.bodies == [b"abcdefg", b"next"]
    assert answer.count(b"200 OK") == 2


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_skips_trailers_in_pieces_of_any_size(size: int) -> None:
    async def run() -> None:
        wire = Wire()
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        sent = head + b"3\r\nabc\r\n0\r\nTrailer: " + b"t" * 1000 + b"\r\n\r\n"
        answer = await wire.send(*(sent[at : at + size] for at in range(0, len(sent), size)))
        assert answer.endswith(b"abc")

    asyncio.run(run())


@on_loop
async def test_answers_pipelined_requests_in_order() -> None:
    wire = Wire()
    wire.target.hold = True
    assert await wire.send(infer(b"one") + infer(b"two"), infer(b"three")) == b""
    for number, body in enumerate((b"one", b"two", b"three"), 1):
        assert len(wire.target.bodies) == number, "one is under way at a time"
        wire.target.release()
        await wire.send()
        assert wire.target.bodies[number - 1] == body
        assert wire.transport.written.count(b"200 OK") == number and wire.transport.written.endswith(body)


@pytest.mark.parametrize("extra", [b"", b"Accept-Encoding: gzip\r\n"], ids=["direct", "compressed"])
def test_cancels_what_is_under_way_when_the_client_leaves(extra: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        wire.target.hold = True
        await wire.send(infer(b"one", extra=extra))
        wire.connection.connection_lost(None)
        assert wire.target.cancelled == [1]
        wire.target.release()  # too late, and harmless

    asyncio.run(run())


@pytest.mark.parametrize("extra", [b"", b"Accept-Encoding: gzip\r\n"], ids=["direct", "compressed"])
def test_a_model_that_has_become_decoupled_meanwhile_gives_no_other_request_an_answer(extra: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        wire.target.hold = True
        await wire.send(infer(b"one", extra=extra))
        wire.target.sinks[0].on_response(None, (b"{}",), False)
        assert wire.transport.written.startswith(b"HTTP/1.1 501 ")
        assert b"doesn't support models with decoupled transaction policy" in wire.transport.written
        assert wire.target.cancelled == [1]
        wire.target.hold = False
        answer = await wire.send(infer(b"two"))
        assert answer.count(b"HTTP/1.1") == 1
        assert answer.endswith(b"two")

    asyncio.run(run())


@on_loop
async def test_tells_an_unavailable_client_to_try_again() -> None:
    wire = Wire()
    wire.target.hold = True
    await wire.send(infer(b"one"))
    wire.target.fail(Unavailable("Exceeds maximum queue size"))
    assert wire.transport.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1\r\n" in wire.transport.written
    assert not wire.transport.closed


@on_loop
async def test_hands_everything_else_to_the_application() -> None:
    wire = Wire()
    answer = await wire.send(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.endswith(b"GET /v2/health/live ")
    assert await wire.send(infer(b"again")) != b""


@on_loop
async def test_head_has_no_body() -> None:
    wire = Wire()
    answer = await wire.send(b"HEAD /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length: 9" in answer


@on_loop
async def test_closes_after_connection_close_and_http_1_0() -> None:
    for request in (infer(extra=b"Connection: close\r\n"), infer().replace(b"HTTP/1.1", b"HTTP/1.0")):
        wire = Wire()
        answer = await wire.send(request)
        assert b"Connection: close" in answer
        assert wire.transport.closed


BARE = b"GET /v2/health/live HTTP/1.%d\r\nHost: a\r\n%s\r\n"


@pytest.mark.parametrize(
    ("minor", "fields", "closes"),
    [
        (1, b"", False),
        (1, b"Connection: close\r\n", True),
        (1, b"connection: Keep-Alive , CLOSE\r\n", True),
        (1, b"Connection: keep-alive\r\nConnection: close\r\n", True),
        (1, b"Connection: close\r\nContent-Length: 0\r\n", True),
        (1, b"Connection: keep-alive\r\n", False),
        (1, b"Connection: disclose\r\n", False),
        (0, b"", True),
        (0, b"Connection: keep-alive\r\n", False),
        (0, b"Connection: keep-alive, close\r\n", True),
    ],
)
def test_a_request_without_a_body_says_whether_another_one_follows(minor: int, fields: bytes, closes: bool) -> None:
    async def run() -> None:
        for request in (BARE, BARE.replace(b"GET", b"POST").replace(b"health/live", b"models/echo/infer")):
            wire = Wire()
            await wire.answered(request % (minor, fields) + request % (1, b""))
            for _ in range(20):
                await asyncio.sleep(0)
            assert wire.transport.closed == closes
            assert wire.transport.written.count(b"HTTP/1.1") == (1 if closes else 2)

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_an_empty_line_before_a_request_is_nothing(size: int) -> None:
    async def run() -> None:
        wire = Wire()
        data = b"\r\n" + infer(b"one") + b"\r\n" + infer(b"two") + b"\r\n" + infer(b"three") + b"\r\n"
        await wire.answered(*(data[i : i + size] for i in range(0, len(data), size)))
        assert wire.target.bodies == [b"one", b"two", b"three"]
        assert wire.transport.written.count(b"HTTP/1.1 200") == wire.transport.written.count(b"HTTP/1.1") == 3
        assert not wire.transport.closed

    asyncio.run(run())


@pytest.mark.parametrize("pieces", [(b"\r\n",), (b"\r", b"\n")], ids=["at once", "in two"])
def test_an_empty_line_behind_a_request_begins_no_head(pieces: tuple[bytes, ...]) -> None:
    async def run() -> None:
        wire = Wire()
        await wire.answered(infer(b"one"))
        await wire.send(*pieces)
        wire.connection.sweep(wire.loop.time() + 11)
        assert wire.transport.written.count(b"HTTP/1.1") == 1
        assert (await wire.send(infer(b"two"))).endswith(b"two")

    asyncio.run(run())


@on_loop
async def test_asks_for_the_body_when_the_client_expects_to_be_asked() -> None:
    wire = Wire()
    request = infer(b"body", extra=b"Expect: 100-continue\r\n")
    assert await wire.send(request[:-4]) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await wire.send(request[-4:])).endswith(b"body")


LIMITS = HttpLimits(
    max_body_bytes=100, max_header_bytes=2000, max_header_count=10, max_url_bytes=200, max_chunk_count=3
)
POST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /v2 HTTP/1.1\r\n"
BAD = {
    "length and coding": (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "two equal lengths": (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "signed length": (POST + b"Content-Length: +2\r\n\r\n{}", 400),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "length with underscore": (POST + b"Content-Length: 1_0\r\n\r\n", 400),
    "huge length": (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "length over the limit": (POST + b"Content-Length: 101\r\n\r\n", 400),
    "unknown coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "bad chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "negative chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
    "huge chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 400),
    "chunk without end": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
    "chunks over the limit": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 4, 400),
    "line feed in a chunk extension": (POST + b'Transfer-Encoding: chunked\r\n\r\n2;a="x\n\r\n{}\r\n0\r\n\r\n', 400),
    "line feed in a trailer": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: a\n\nGET /v2\r\n\r\n",
        400,
    ),
    "nul in a trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: \0\r\n\r\n", 400),
    "trailer without a colon": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nGET / \r\n\r\n", 400),
    "folded trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\n z\r\n\r\n", 400),
    "long chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1000, 400),
    "bare line feeds": (b"GET /v2 HTTP/1.1\nHost: a\n\n", 400),
    "one bare line feed": (b"GET /v2 HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400),
    "folded header": (GET + b"Host: a\r\nX: y\r\n z\r\n\r\n", 400),
    "nul": (GET + b"Host: a\r\nX: \0\r\n\r\n", 400),
    "space before colon": (GET + b"Host : a\r\n\r\n", 400),
    "http 0.9": (b"GET /v2\r\n\r\n", 505),
    "http 2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "http 3.0": (b"GET /v2 HTTP/3.0\r\nHost: a\r\n\r\n", 400),
    "tls hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "lower-case method": (b"get /v2 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "absolute form": (b"GET http://evil/v2 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no host": (GET + b"\r\n", 400),
    "two hosts": (GET + b"Host: a\r\nHost: a\r\n\r\n", 400),
    "host with path": (GET + b"Host: a/v1?\r\n\r\n", 400),
    "host with user": (GET + b"Host: a@b\r\n\r\n", 400),
    "host with fragment": (GET + b"Host: a#\r\n\r\n", 400),
    "host with a zone and a path": (GET + b"Host: [fe80::1%eth0/v1]\r\n\r\n", 400),
    "long host": (GET + b"Host: " + b"a" * 300 + b"\r\n\r\n", 400),
    "many headers": (GET + b"Host: a\r\n" + b"X: y\r\n" * 10 + b"\r\n", 431),
    "long headers": (GET + b"Host: a\r\nX: " + b"y" * 3000, 431),
    "long headers at once": (GET + b"Host: a\r\nX: " + b"y" * 3000 + b"\r\n\r\n", 431),
    "long url": (b"GET /" + b"a" * 300 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "unknown expectation": (POST + b"Expect: tea\r\nContent-Length: 2\r\n\r\n", 417),
    "two json lengths": (POST + b"Inference-Header-Content-Length: 2\r\n" * 2 + b"Content-Length: 2\r\n\r\n{}", 400),
}


@pytest.mark.parametrize(("request_bytes", "status"), BAD.values(), ids=BAD.keys())
def test_refuses_what_is_not_http_and_closes(request_bytes: bytes, status: int) -> None:
    async def run() -> None:
        wire = Wire(LIMITS)
        answer = await wire.send(request_bytes)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert answer.count(b"HTTP/1.1") == 1
        assert b'{"error":"' in answer
        assert len(answer) < 1024
        assert wire.transport.closed
        assert await wire.send(infer()) == b""

    asyncio.run(run())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"x", b"Unable to parse Inference-Header-Content-Length, got: x"),
        (b"1.5", b"Unable to parse Inference-Header-Content-Length, got: 1.5"),
        (b"99999999999", b"value is out of range [ -2147483648, 2147483647 ], got: 99999999999"),
        (b"-1", b"inference header size should be in range (0, 2), got: -1"),
    ],
)
def test_names_a_bad_json_length_and_goes_on(value: bytes, text: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        answer = await wire.send(infer(extra=b"Inference-Header-Content-Length: " + value + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert text in answer
        assert (await wire.send(infer(b"good"))).endswith(b"good")

    asyncio.run(run())


@on_loop
async def test_limits_are_inclusive() -> None:
    wire = Wire(LIMITS)
    assert b"200 OK" in await wire.send(infer(b"x" * 100))
    chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 3 + b"0\r\n\r\n"
    assert b"200 OK" in await wire.send(chunks)
    assert b"200 OK" in await wire.send(GET + b"Host: a\r\n" + b"X: y\r\n" * 9 + b"\r\n")
    assert b"200 OK" in await wire.send(b"GET /" + b"a" * 199 + b" HTTP/1.1\r\nHost: a\r\n\r\n")


@on_loop
async def test_unknown_model_is_404_and_the_connection_lives() -> None:
    wire = Wire()
    answer = await wire.send(infer(model="nope"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"Request for unknown model: 'nope' is not found" in answer
    assert b"200 OK" in await wire.send(infer())


@on_loop
async def test_a_slow_head_and_a_slow_body_time_out() -> None:
    half = infer(b"0123456789")[:-5]
    for sent, limit_s in (
        ((b"POST /v2/mod",), 10),
        ((half,), 60),
        ((infer(), b"POST /v2/mod"), 10),
        ((infer(), half), 60),
    ):
        wire = Wire()
        answered = await wire.send(*sent)
        now_s = wire.loop.time()
        wire.connection.sweep(now_s + limit_s - 1)
        assert wire.transport.written == answered and not wire.transport.closed
        wire.connection.sweep(now_s + limit_s + 1)
        assert wire.transport.written[len(answered) :].startswith(b"HTTP/1.1 408 ")
        assert wire.transport.closed


@on_loop
async def test_a_connection_on_which_no_head_begins_is_closed() -> None:
    wire = Wire()
    now_s = wire.loop.time()
    wire.connection.sweep(now_s + 9)
    assert not wire.transport.closed
    wire.connection.sweep(now_s + 11)
    assert (wire.transport.closed, wire.transport.written) == (True, b"")


@on_loop
async def test_a_connection_over_the_limit_is_refused() -> None:
    wire = Wire(HttpLimits(max_connections=0))
    assert wire.transport.written.startswith(b"HTTP/1.1 503 ")
    assert wire.transport.closed
    assert b'"too many connections"' in wire.transport.written


@on_loop
async def test_a_connection_that_comes_while_the_server_stops_is_told_so() -> None:
    wire = Wire()
    await wire.context.connections.drain(0)
    late = Transport()
    HttpConnection(wire.context).connection_made(late)
    assert late.written.startswith(b"HTTP/1.1 503 ") and b'"server is shutting down"' in late.written
    assert late.closed
