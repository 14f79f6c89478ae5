"""What every answer has, and what a refusal costs."""

import asyncio
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from app.edge.restricted_api import RestrictedApis
from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.head_policy import HeadPolicy
from app.http.limits import HttpLimits
from app.http.responses import error_body
from tests.app.http.wire import Answer, EchoRoutes, Wire, hello, infer


def run(test: Any) -> None:
    asyncio.run(test())


@pytest.mark.parametrize(
    "request_bytes",
    [
        infer(),
        infer(extra=b"Inference-Header-Content-Length: 2\r\n"),
        infer(extra=b"Accept-Encoding: gzip\r\n"),
        infer(extra=b"Connection: close\r\n"),
        infer(extra=b"Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
        infer(model="nope"),
        b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
    ],
)
def test_every_answer_has_a_date(request_bytes: bytes) -> None:
    async def test() -> None:
        answer = await Wire().answered(request_bytes)
        date = parsedate_to_datetime(answer.headers["date"])
        assert abs((datetime.now(UTC) - date).total_seconds()) < 60

    run(test)


def test_the_date_is_that_of_the_answer() -> None:
    async def test() -> None:
        context = HttpContext(hello, EchoRoutes(), HttpLimits(), asyncio.get_running_loop())
        front = HttpFront(context)
        await front.listen("127.0.0.1", 0)
        context.head_ends.plain = stale = b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"
        async with asyncio.timeout(5):
            while context.head_ends.plain == stale:
                await asyncio.sleep(0.05)
        await front.close(1)

    run(test)


@pytest.mark.parametrize("model", ["echo", "nope"])
def test_http_1_0_is_told_that_the_connection_stays(model: str) -> None:
    async def test() -> None:
        wire = Wire()
        old = infer(model=model, extra=b"Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
        for _ in range(2):
            assert b"\r\nConnection: keep-alive\r\n" in await wire.send(old)
        assert not wire.transport.closed
        assert b"\r\nConnection:" not in await wire.send(infer(model=model))

    run(test)


@pytest.mark.parametrize("message", ["x" * 5000, "ж" * 5000, "\0" * 5000, '"' * 1000, "\U0001f600" * 900, "é" * 510])
def test_error_bodies_are_at_most_a_kibibyte(message: str) -> None:
    body = error_body(message)
    assert 300 < len(body) <= 1024
    Answer(b"HTTP/1.1 400 x\r\n\r\n" + body).error.encode()


RESTRICTED = HeadPolicy(RestrictedApis(["inference,model-repository:key=secret"]))
CONTROL = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\n"
INFER = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize("head", [CONTROL, INFER], ids=["control", "infer"])
@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 1000000", b"Transfer-Encoding: chunked", b"Expect: 100-continue\r\nContent-Length: 9"],
    ids=["long", "chunked", "expecting"],
)
def test_a_restricted_request_is_refused_before_its_body_is_sent(head: bytes, framing: bytes) -> None:
    async def test() -> None:
        wire = Wire(policy=RESTRICTED)
        answer = Answer(await wire.send(head + framing + b"\r\n\r\n"))
        assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'key'")
        assert wire.transport.closed
        wire = Wire(policy=RESTRICTED)
        await wire.send(head + b"key: secret\r\n" + framing + b"\r\n\r\n")
        assert not wire.transport.closed

    run(test)


@pytest.mark.parametrize("head", [CONTROL, INFER], ids=["control", "infer"])
def test_a_small_restricted_request_leaves_the_connection_open(head: bytes) -> None:
    async def test() -> None:
        wire = Wire(policy=RESTRICTED)
        assert b" 403 " in await wire.send(head + b"Content-Length: 2\r\n\r\n", b"{}")
        assert b" 200 " in await wire.send(head + b"key: secret\r\nContent-Length: 2\r\n\r\n{}")

    run(test)


def test_a_raw_body_that_is_too_large_gets_the_text_for_raw_bodies() -> None:
    async def test() -> None:
        wire = Wire(HttpLimits(max_body_bytes=100))
        head = b"Inference-Header-Content-Length: 0\r\nContent-Length: 101\r\n\r\n"
        assert Answer(await wire.send(INFER + head)).error == (
            "Raw input has a byte_size (101 bytes) that exceeds the maximum allowed value of 100 bytes. "
            "Use --http-max-input-size to increase the limit."
        )

    run(test)
