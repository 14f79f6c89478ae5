"""What a request over HTTP needs a key for, and when it is asked for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.edge.access import Access
from app.edge.api_keys import ApiKeys, new_key
from app.edge.restricted_api import STATISTICS
from app.http.head_policy import HeadPolicy
from app.http.routes import ROUTES, ApiRoute
from tests.app.http.wire import Answer, Wire, infer

SCOPES = ("infer", "read", "manage")
MADE = {scope: new_key(scope, scope) for scope in SCOPES}
ACCESS = Access(ApiKeys([line for _, line in MADE.values()]))
MANAGING = {
    "load",
    "unload",
    "register",
    "unregister",
    "registered",
    "change_traffic",
    "update_trace_settings",
    "update_log_settings",
    "console_log",
    "doctor",
}


def run(test: Any) -> None:
    asyncio.run(test())


def key_of(scope: str) -> bytes:
    return f"Authorization: Bearer {MADE[scope][0]}\r\n".encode()


OPEN = {"live", "ready", "model_ready", "console_page", "console_file"}
INFERRING = {"inference"} | {
    f"{kind}_{what}" for kind in ("system", "cuda") for what in ("status", "register", "unregister")
}


def wanted(route: ApiRoute) -> str:
    if route.endpoint in OPEN:
        return ""
    if route.endpoint in INFERRING:
        return "infer"
    return "manage" if route.endpoint in MANAGING else "read"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_wants_the_key_of_its_scope(route: ApiRoute) -> None:
    path = route.path.format(model="echo", version="1", region="r", repository="a", file="console.css")
    head = f"{route.method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n".encode()

    async def test() -> None:
        wire = Wire(policy=HeadPolicy(access=ACCESS))
        refused = await wire.answered(head + b"\r\n")
        assert (refused.status == 401) == bool(wanted(route))
        if wanted(route):
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.error == "this server expects an API key in the header 'Authorization: Bearer <key>'"
        for scope in SCOPES:
            answer = await wire.answered(head + key_of(scope) + b"\r\n")
            assert (answer.status not in (401, 403)) == (wanted(route) in ("", scope))

    run(test)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", [b"/v2/models/echo/infer", b"/v2/repository/models/echo/load"])
def test_a_request_without_a_key_is_refused_before_its_body_is_sent(path: bytes, framing: bytes) -> None:
    async def test() -> None:
        wire = Wire(policy=HeadPolicy(access=ACCESS))
        answer = Answer(await wire.send(b"POST %s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n" % (path, framing)))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert wire.transport.closed

    run(test)


def test_a_head_that_was_let_in_is_not_read_again_until_the_keys_change(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(MADE["infer"][1])
    keys = ApiKeys(path=str(path))

    async def test() -> None:
        wire = Wire(policy=HeadPolicy(access=Access(keys)))
        request = infer(extra=key_of("infer"))
        for number in range(3):
            assert b" 200 " in await wire.send(request)
            changing = b"traceparent: %d\r\n" % number
            assert b" 200 " in await wire.send(infer(extra=changing + key_of("infer")))
            assert b" 401 " in await wire.send(infer(extra=changing))
            assert b" 401 " in await wire.send(infer(extra=key_of("read")))
        assert len({id(head) for head in wire.context.heads.by_bytes.values()}) == 3
        path.write_text(MADE["read"][1])
        assert [keys.reload_if_changed() for _ in range(2)] == [False, True]
        wire.context.keys_changed()
        assert b" 401 " in await wire.send(request)
        assert b" 403 " in await wire.send(infer(extra=key_of("read")))

    run(test)


def test_a_port_without_routes_asks_for_one_key_for_everything() -> None:
    async def test() -> None:
        wire = Wire(policy=HeadPolicy(access=ACCESS, category=STATISTICS))
        for path in ("/metrics", "/", "/v2/health/live"):
            assert (await wire.request("GET", path)).status == 401
            authorization = f"Bearer {MADE['read'][0]}"
            assert (await wire.request("GET", path, Authorization=authorization)).status == 200

    run(test)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_port_without_the_admin_api_refuses_what_manages_and_nothing_else(route: ApiRoute) -> None:
    path = route.path.format(model="echo", version="1", region="r", repository="a", file="console.css")

    async def test() -> None:
        wire = Wire(policy=HeadPolicy(access=Access(admin=False)))
        answer = await wire.request(route.method, path)
        assert (answer.status == 403) == (route.endpoint in MANAGING)
        if answer.status == 403:
            assert answer.error == "this port does not serve the admin API"

    run(test)
