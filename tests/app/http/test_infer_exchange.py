import asyncio
import gzip
import json
import os
import threading
import zlib
from collections.abc import Awaitable, Callable

import pytest

from app.edge.header_forwarding import HeaderForwarding
from app.edge.restricted_api import RestrictedApis
from app.http.head_policy import HeadPolicy
from app.http.limits import HttpLimits
from deployments.lane.work_queue import WorkQueue
from protocol.errors import Internal
from protocol.limits import Limits
from protocol.request_parameters import read_parameters
from tests.app.http.wire import Wire

INFER = "/v2/models/echo/infer"
LARGE = bytes(range(256)) * 1024


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@pytest.mark.parametrize("size", [10, 200_000], ids=["small", "in a thread"])
@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_request_is_unpacked(coding: str, pack: Callable[[bytes], bytes], size: int) -> None:
    async def run() -> None:
        wire = Wire()
        body = (LARGE * 4)[:size]
        for _ in range(2):
            answer = await wire.request("POST", INFER, pack(body), Content_Encoding=coding)
            assert (answer.status, answer.body) == (200, body)
        assert wire.target.bodies == [body, body]

    asyncio.run(run())


@on_loop
async def test_json_length_is_that_of_the_unpacked_body() -> None:
    wire = Wire()
    body = gzip.compress(b"{}" + bytes(400))
    answer = await wire.request("POST", INFER, body, Content_Encoding="gzip", Inference_Header_Content_Length="2")
    assert wire.target.json_lengths == [2]
    assert answer.headers["inference-header-content-length"] == "2"


@pytest.mark.parametrize("size", [10, 200_000], ids=["small", "in a thread"])
@pytest.mark.parametrize(("coding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_response_is_compressed_for_who_asks(coding: str, unpack: Callable[[bytes], bytes], size: int) -> None:
    async def run() -> None:
        wire = Wire()
        body = LARGE[:size]
        answer = await wire.request("POST", INFER, body, Accept_Encoding=coding, Inference_Header_Content_Length="4")
        assert answer.status == 200
        assert answer.headers["content-encoding"] == coding
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["inference-header-content-length"] == "4"
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert unpack(answer.body) == body

    asyncio.run(run())


@on_loop
async def test_errors_are_never_compressed() -> None:
    wire = Wire()
    wire.target.hold = True
    asyncio.get_running_loop().call_soon(lambda: wire.target.sinks[0].on_error(Internal("the model failed")))
    answer = await wire.request("POST", INFER, b"{}", Accept_Encoding="gzip")
    assert (answer.status, answer.error) == (500, "the model failed")
    assert "content-encoding" not in answer.headers


REFUSED = {
    "unknown coding": ("br", b"", 501, "Unsupported compression type"),
    "two codings": ("gzip, gzip", b"", 501, "Unsupported compression type"),
    "zstd": ("zstd", b"", 501, "Unsupported compression type"),
    "no such data": ("gzip", b"{}", 400, "failed to decompress the request body: invalid data"),
    "truncated": (
        "gzip",
        gzip.compress(b"{}")[:-3],
        400,
        "failed to decompress the request body: unexpected end of data",
    ),
    "nested": ("deflate", gzip.compress(b"{}"), 400, "failed to decompress the request body: invalid data"),
    "bomb": (
        "gzip",
        gzip.compress(bytes(4 << 20)),
        400,
        "decompressed request is more than 100 times as large as the compressed one. "
        "Use --http-max-decompression-ratio to increase the limit.",
    ),
}


@pytest.mark.parametrize(("coding", "body", "status", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_compression_is_refused_and_the_connection_goes_on(
    coding: str, body: bytes, status: int, text: str
) -> None:
    async def run() -> None:
        wire = Wire()
        answer = await wire.request("POST", INFER, body, Content_Encoding=coding)
        assert (answer.status, answer.error) == (status, text)
        assert (answer.headers.get("accept-encoding") == "gzip, deflate") == (status == 501)
        assert wire.target.bodies == []
        assert (await wire.request("POST", INFER, b"{}")).status == 200

    asyncio.run(run())


@on_loop
async def test_a_body_must_not_become_larger_than_a_plain_one_may_be() -> None:
    wire = Wire(HttpLimits(max_body_bytes=1000))
    assert (await wire.request("POST", INFER, gzip.compress(bytes(1000)), Content_Encoding="gzip")).status == 200
    answer = await wire.request("POST", INFER, gzip.compress(bytes(1001)), Content_Encoding="gzip")
    assert answer.status == 400
    assert "exceeds the maximum allowed input size of 1000 bytes" in answer.error


@on_loop
async def test_identity_is_no_compression() -> None:
    wire = Wire()
    answer = await wire.request("POST", INFER, b"{}", Content_Encoding="identity", Accept_Encoding="identity")
    assert answer.body == b"{}"
    assert "content-encoding" not in answer.headers


@on_loop
async def test_unknown_model_is_told_to_who_compresses() -> None:
    answer = await Wire().request("POST", "/v2/models/nope/infer", gzip.compress(b"{}"), Content_Encoding="gzip")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'nope' is not found")


@on_loop
async def test_a_client_that_leaves_cancels_its_compressed_request() -> None:
    wire = Wire()
    wire.target.hold = True
    await wire.send(
        b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    )
    wire.connection.connection_lost(None)
    assert wire.target.cancelled == [1]
    wire.target.release()  # too late, and harmless


@on_loop
async def test_what_a_client_that_leaves_has_sent_or_would_get_is_let_go_of() -> None:
    first, go_on = Wire(), threading.Event()
    packing = first.context.packing = WorkQueue(asyncio.get_running_loop(), "slow", 1)
    packing.submit(lambda: go_on.wait(30), lambda result, error: None)
    for coding, body in (("Content-Encoding", gzip.compress(os.urandom(200_000))), ("Accept-Encoding", LARGE)):
        wire = Wire()
        wire.share(first)
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\n{coding}: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        await wire.send(head.encode() + body)
        assert len(packing) == 1
        wire.connection.connection_lost(None)
        assert len(packing) == 0
    go_on.set()
    packing.close()


@on_loop
async def test_the_plain_way_is_decided_once_for_a_head() -> None:
    wire = Wire()
    await wire.request("POST", INFER, b"{}")
    await wire.request("POST", INFER, b"{}", Accept_Encoding="gzip")
    assert [head.direct for head in wire.context.heads.by_bytes.values()] == [True, False]


FORWARDED = {
    "no parameters": (b'{"inputs":[]}', {"X-Trace-Id": "7"}),
    "parameters": (b'{"inputs":[],"parameters":{"a":1}}', {"a": 1, "X-Trace-Id": "7"}),
    "not finite": (b'{"inputs":[{"data":[NaN,-Infinity]}]}', {"X-Trace-Id": "7"}),
    "empty": (b"{}", {"X-Trace-Id": "7"}),
    "white space": (b'{"id":"1"' + b" " * 10_000 + b"}" + b"\r\n" * 10_000, {"X-Trace-Id": "7"}),
    "nothing but white space": (b" {" + b"\n" * 10_000 + b"}", {"X-Trace-Id": "7"}),
    "the client tries to forge it": (b'{"eagleray_forwarded_headers":{"X-Trace-Id":"8"}}', {"X-Trace-Id": "7"}),
    "the client's own of that name": (b'{"parameters":{"X-Trace-Id":1}}', {"X-Trace-Id": "7"}),
}


@pytest.mark.parametrize(("body", "parameters"), FORWARDED.values(), ids=FORWARDED.keys())
def test_matching_headers_become_parameters(body: bytes, parameters: dict[str, object]) -> None:
    async def run() -> None:
        wire = Wire(policy=HeadPolicy(forwarding=HeaderForwarding("x-trace-.*")))
        await wire.request("POST", INFER, body, X_Trace_Id="7", X_Other="8")
        sent = json.loads(wire.target.bodies[0])
        assert read_parameters(sent, Limits()).custom == parameters
        given = json.loads(body)
        assert str(sent.get("inputs")) == str(given.get("inputs"))

    asyncio.run(run())


@on_loop
async def test_forwarding_looks_for_the_end_of_the_json_in_a_bounded_part() -> None:
    wire = Wire(policy=HeadPolicy(forwarding=HeaderForwarding("^x-")))
    answer = await wire.request("POST", INFER, b"{}" + b" " * (1 << 20), X_A="1")
    assert (answer.status, answer.error) == (400, "the request's JSON ends in more than 65536 bytes of white space")
    assert wire.target.bodies == []


@on_loop
async def test_forwarding_moves_the_end_of_the_json() -> None:
    wire = Wire(policy=HeadPolicy(forwarding=HeaderForwarding("^x-")))
    await wire.request("POST", INFER, b'{"inputs":[]}\0\1\2', X_A="é", Inference_Header_Content_Length="13")
    length = wire.target.json_lengths[0]
    assert length is not None
    assert wire.target.bodies[0][length:] == b"\0\1\2"
    assert read_parameters(json.loads(wire.target.bodies[0][:length]), Limits()).custom == {"X-A": "\ufffd"}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"\xff"'])
def test_what_is_no_request_is_left_to_the_model_to_refuse(body: bytes) -> None:
    async def run() -> None:
        wire = Wire(policy=HeadPolicy(forwarding=HeaderForwarding("^x-")))
        await wire.request("POST", INFER, body, X_A="1")
        assert wire.target.bodies == [body]

    asyncio.run(run())


@pytest.mark.parametrize("name", ["sequence_id", "Timeout", "triton_secret", "priority", "binary_data_output"])
def test_headers_with_a_meaning_of_their_own_cannot_be_forwarded(name: str) -> None:
    async def run() -> None:
        wire = Wire(policy=HeadPolicy(forwarding=HeaderForwarding(".*_.*|timeout|priority")))
        raw = f"POST {INFER} HTTP/1.1\r\nHost: a\r\n{name}: 1\r\nContent-Length: 2\r\n\r\n{{}}"
        answer = await wire.answered(raw.encode())
        assert (answer.status, answer.error) == (
            400,
            f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
        )
        assert wire.target.bodies == []

    asyncio.run(run())


@on_loop
async def test_without_a_match_nothing_is_paid() -> None:
    wire = Wire(policy=HeadPolicy(forwarding=HeaderForwarding("x-trace")))
    await wire.request("POST", INFER, b"{}", X_Other="8")
    assert [head.direct for head in wire.context.heads.by_bytes.values()] == [True]
    assert wire.target.bodies == [b"{}"]


@on_loop
async def test_headers_that_control_ray_have_no_effect() -> None:
    wire = Wire()
    answer = await wire.request(
        "POST",
        INFER,
        b"{}",
        X_Request_Timeout_Seconds="0",
        X_Request_Disconnect_Disabled="1",
        serve_multiplexed_model_id="other",
        X_Forwarded_For="10.0.0.1",
        traceparent="junk",
    )
    assert (answer.status, answer.body) == (200, b"{}")
    assert all(head.direct for head in wire.context.heads.by_bytes.values())


RESTRICTED = {
    "no header": ({}, 403),
    "wrong value": ({"api-key": "wrong"}, 403),
    "prefix of the value": ({"api-key": "secre"}, 403),
    "right value": ({"api-key": "secret"}, 200),
    "name in upper case": ({"API-KEY": "secret"}, 200),
}


@pytest.mark.parametrize("action", ["infer", "generate", "generate_stream"])
@pytest.mark.parametrize(("headers", "status"), RESTRICTED.values(), ids=RESTRICTED.keys())
def test_restricted_inference_asks_for_its_header(headers: dict[str, str], status: int, action: str) -> None:
    async def run() -> None:
        wire = Wire(policy=HeadPolicy(RestrictedApis(["inference:api-key=secret"])))
        for _ in range(2):  # the second time the head is a known one
            answer = await wire.request("POST", f"/v2/models/echo/{action}?x=y", b'{"outputs":[]}', **headers)
            if status == 403:
                assert answer.error == "This API is restricted, expecting header 'api-key'"
                assert wire.target.bodies == []
            assert (answer.status == 403) == (status == 403)

    asyncio.run(run())
