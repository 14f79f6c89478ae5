import asyncio
import json
import secrets
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

from app.edge.restricted_api import CATEGORIES
from app.http.api import Api
from app.http.routes import ROUTES, ApiRoute
from app.service.model_control import ExplicitControl, LoadRequest
from deployments.control.directory import UNAVAILABLE
from deployments.core.counts import MODEL, Label
from deployments.replica import cuda_driver
from tests.app.http.served import Served, entry
from tests.app.http.wire import Answer
from tests.gpus import forget_driver

CONTROL = "explicit model load / unload is not allowed if polling is enabled"
SHM_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def ask(method: str, path: str, body: object = b"", served: dict[str, Any] | None = None, **headers: str) -> Answer:
    async def run() -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await Served(**(served or {})).request(method, path, content, **headers)

    return asyncio.run(run())


def test_every_route_has_an_endpoint_that_answers() -> None:
    async def run() -> None:
        served = Served()
        api = served.context.app
        assert isinstance(api, Api)
        assert {route.endpoint for route in ROUTES} == api.endpoints.keys()

    asyncio.run(run())


def filled(path: str) -> str:
    return path.format(model="good", version="1", repository="r", region="r", file="console.css")


PATHS = sorted({filled(route.path) for route in ROUTES})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
def test_methods_that_no_route_takes_are_405(method: str, path: str) -> None:
    answer = ask(method, path)
    assert answer.status == 405
    assert answer.body == b"" if method == "HEAD" else answer.error == "Method Not Allowed"
    assert answer.headers["allow"]


@pytest.mark.parametrize("path", [*PATHS, "/v2/models/nope", "/nothing"])
def test_no_cache_between_may_keep_an_answer(path: str) -> None:
    """One that says nothing of it is kept by Varnish for two minutes: readiness and statistics, too."""
    kept = "no-cache" if path == "/" or path.startswith("/console/") else "no-store"
    assert ask("GET", path).headers["cache-control"] == kept


@pytest.mark.parametrize(
    "path", [path + "/" for path in PATHS] + ["/console/", "/v3", "/v2x", "/v2/health", "/metrics"]
)
def test_unknown_paths_are_404(path: str) -> None:
    for method in ("GET", "POST"):
        answer = ask(method, path)
        assert (answer.status, answer.error) == (404, "Not Found")


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if each.category in CATEGORIES], ids=lambda route: f"{route.method} {route.path}"
)
def test_every_restricted_route_asks_for_its_header_whatever_the_method(route: Any) -> None:
    served = {"restricted": (f"{route.category}:key=value",)}
    for method in (route.method, "GET", "POST", "DELETE"):
        answer = ask(method, filled(route.path), b"{}", served)
        assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'key'")
    assert ask(route.method, filled(route.path), b"{}", served, key="value").status != 403


ANSWERS = {
    "live": ("GET", "/v2/health/live", b"", 200, None),
    "healthz": ("GET", "/-/healthz", b"", 200, None),
    "not ready while a model is not": ("GET", "/v2/health/ready", b"", 400, None),
    "model ready": ("GET", "/v2/models/good/ready", b"", 200, None),
    "version ready": ("GET", "/v2/models/good/versions/2/ready?x=y", b"", 200, None),
    "name with a slash": ("GET", "/v2/models/a%2Fb/ready", b"", 200, None),
    "unknown": ("GET", "/v2/models/x", b"", 404, "Request for unknown model: 'x' is not found"),
    "unknown is not ready": ("GET", "/v2/models/x/ready", b"", 400, "Model version not ready"),
    "unknown with odd name": (
        "GET",
        "/v2/models/%2e%2e/config",
        b"",
        404,
        "Request for unknown model: '..' is not found",
    ),
    "nul in the name": ("GET", "/v2/models/%00", b"", 404, "Request for unknown model: '\0' is not found"),
    "unknown version": (
        "GET",
        "/v2/models/good/versions/3",
        b"",
        404,
        "Request for unknown model: 'good' version 3 is not found",
    ),
    "unloaded is not ready": ("GET", "/v2/models/half/versions/2/ready", b"", 400, "Model version not ready"),
    "version not ready": (
        "GET",
        "/v2/models/half/versions/2",
        b"",
        503,
        "Request for unknown model: 'half' version 2 is not at ready state",
    ),
    "no version": ("GET", "/v2/models/bad", b"", 404, "Request for unknown model: 'bad' has no available versions"),
    "statistics of unknown": ("GET", "/v2/models/x/stats", b"", 400, "requested model 'x' is not available"),
    "statistics of unknown version": (
        "GET",
        "/v2/models/good/versions/9/stats",
        b"",
        400,
        "requested model version is not available for model 'good'",
    ),
    "decoupled by infer": (
        "POST",
        "/v2/models/stream/infer",
        b"{}",
        501,
        "HTTP end point doesn't support models with decoupled transaction policy",
    ),
    "index with bad ready": (
        "POST",
        "/v2/repository/index",
        b'{"ready":1}',
        400,
        "Invalid value for 'ready': expected a boolean",
    ),
    "index with bad JSON": (
        "POST",
        "/v2/repository/index",
        b"{}x",
        400,
        "failed to parse the request JSON buffer: The document root must not be followed by other values. at 2",
    ),
    "load": ("POST", "/v2/repository/models/good/load", b"", 503, CONTROL),
    "unload": ("POST", "/v2/repository/models/good/unload", b'{"parameters":{"unload_dependents":true}}', 503, CONTROL),
    "load with bad parameters": (
        "POST",
        "/v2/repository/models/good/load",
        b'{"parameters":1}',
        400,
        "Unable to parse 'parameters': attempt to get members for non-object",
    ),
    "register when not allowed": ("POST", "/v2/systemsharedmemory/region/r/register", b"{}", 501, SHM_DISABLED),
    "unregister when not allowed": ("POST", "/v2/systemsharedmemory/unregister", b"", 501, SHM_DISABLED),
    "cuda register when not allowed": ("POST", "/v2/cudasharedmemory/region/r/register", b"{}", 501, SHM_DISABLED),
    "status of an unknown region": (
        "GET",
        "/v2/systemsharedmemory/region/r/status",
        b"",
        404,
        "Unable to find system shared memory region: 'r'",
    ),
    "status of an unknown cuda region": (
        "GET",
        "/v2/cudasharedmemory/region/r/status",
        b"",
        404,
        "Unable to find cuda shared memory region: 'r'",
    ),
    "trace file": (
        "POST",
        "/v2/trace/setting",
        b'{"trace_file":"/tmp/x"}',
        501,
        "trace file location can not be updated through network protocol",
    ),
    "trace of an unknown model": (
        "GET",
        "/v2/models/x/trace/setting",
        b"",
        400,
        "Request for unknown model : x",
    ),
    "trace of a model that is not ready": (
        "GET",
        "/v2/models/bad/trace/setting",
        b"",
        400,
        "Request for unknown model : bad",
    ),
    "trace settings that are none": (
        "POST",
        "/v2/trace/setting",
        b"[]",
        400,
        "failed to parse the request JSON buffer: expected a JSON object",
    ),
    "log file": (
        "POST",
        "/v2/logging",
        b'{"log_file":"x"}',
        501,
        "log file location can not be updated through network protocol",
    ),
    "log format": ("POST", "/v2/logging", b'{"log_format":"x"}', 503, "invalid argument for --log_format, got: x"),
}


@pytest.mark.parametrize(("method", "path", "body", "status", "text"), ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_with_tritons_codes_and_texts(
    method: str, path: str, body: bytes, status: int, text: str | None
) -> None:
    answer = ask(method, path, body)
    assert answer.status == status, answer.body
    assert answer.body == b"" if text is None else answer.json == {"error": text}
    assert ("retry-after" in answer.headers) == (status == 503)


def test_metadata_names_what_is_ready() -> None:
    metadata = ask("GET", "/v2/models/good").json
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}]
    assert ask("GET", "/v2/models/half").json["versions"] == ["1"]
    assert ask("GET", "/v2/models/good/versions/1").json["versions"] == ["1"]
    assert ask("GET", "/v2").json["name"] == "triton"


def test_index_leaves_out_what_is_not_ready_when_asked_to() -> None:
    states = {(row["name"], row["version"]): row["state"] for row in ask("POST", "/v2/repository/index").json}
    assert states["half", "2"] == "UNAVAILABLE"
    ready = ask("POST", "/v2/repository/any/index", {"ready": True}).json
    assert {(row["name"], row["version"]) for row in ready} == {
        key for key, state in states.items() if state == "READY"
    }


def test_a_model_that_says_it_is_not_ready_is_not_and_is_served() -> None:
    async def ask_moody(method: str, path: str) -> Answer:
        served = Served()
        served.host.moody.add(("half", 1))
        assert not served.service.health.model_ready("half") and served.service.health.model_ready("good", 1)
        return await served.request(method, path, b"")

    assert asyncio.run(ask_moody("GET", "/v2/models/good/versions/1/ready")).status == 200
    for path in ("/v2/models/half/ready", "/v2/models/half/versions/1/ready"):
        refused = asyncio.run(ask_moody("GET", path))
        assert refused.status == 400
        assert refused.json == {"error": "Model version not ready"}
    assert asyncio.run(ask_moody("GET", "/v2/models/half")).status == 200
    rows = asyncio.run(ask_moody("POST", "/v2/repository/index")).json
    (row,) = [row for row in rows if (row["name"], row["version"]) == ("half", "1")]
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "is not ready: its own is_ready says so")


class Commands:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    async def load(self, request: LoadRequest) -> None:
        self.told.append(request)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        self.told.append((name, unload_dependents))

    async def list_models(self) -> None:
        self.told.append("list")


def test_explicit_mode_refuses_bad_names() -> None:
    served = {"control": ExplicitControl(Commands())}
    answer = ask("POST", "/v2/repository/models/..%2Fx/load", b"", served)
    assert (answer.status, answer.error) == (
        400,
        "invalid model name '../x', model name must not contain path traversal characters",
    )
    answer = ask("POST", "/v2/repository/models/%20/load", b"", served)
    assert answer.error == "Model name cannot be empty. Please enter a valid name to deploy."
    assert ask("POST", "/v2/repository/models/good/unload", b"", served).status == 200


def test_load_and_unload_hand_on_what_the_client_gives() -> None:
    commands = Commands()
    served = {"control": ExplicitControl(commands)}
    given = {"parameters": {"config": "{}", "file:1/model.onnx": "b25ueA=="}}
    assert ask("POST", "/v2/repository/models/a%20b/load", given, served).status == 200
    assert ask("POST", "/v2/repository/models/m/load", b"", served).status == 200
    assert (
        ask("POST", "/v2/repository/models/m/unload", {"parameters": {"unload_dependents": True}}, served).status == 200
    )
    assert commands.told == [LoadRequest("a b", "{}", {"file:1/model.onnx": b"onnx"}), LoadRequest("m"), ("m", True)]


def test_what_is_no_inference_has_little_json_and_a_load_few_members() -> None:
    commands = Commands()
    served = {"control": ExplicitControl(commands)}
    content = "A" * (1 << 20)
    assert ask("POST", "/v2/repository/models/m/load", {"parameters": {"file:1/x": content}}, served).status == 200
    many = {"parameters": {"config": "{}", "file:1/x": content}, "more": [0] * 65_536}
    answer = ask("POST", "/v2/repository/models/m/load", many, served)
    assert (answer.status, answer.error) == (400, "request JSON has more than 65536 elements")
    for path in ("index", "models/m/unload", "register", "unregister"):
        answer = ask("POST", f"/v2/repository/{path}", {"more": "x" * (1 << 18)}, served)
        assert (answer.status, answer.error) == (400, "request JSON of 262156 bytes is larger than 262144 bytes"), path
    assert len(commands.told) == 1


@pytest.mark.parametrize(
    ("parameters", "status", "error"),
    [
        ({"other": 1}, 500, "unexpected error on creating Triton parameter"),
        ({"config": {}}, 400, "Unable to parse 'config'"),
        ({"file:1/x": "?"}, 400, "Unable to parse 'file:1/x': it is not base64"),
    ],
)
def test_load_refuses_parameters_that_mean_nothing(parameters: dict[str, Any], status: int, error: str) -> None:
    answer = ask(
        "POST", "/v2/repository/models/m/load", {"parameters": parameters}, {"control": ExplicitControl(Commands())}
    )
    assert (answer.status, answer.error.startswith(error)) == (status, True), answer.error


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "http://test"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://elsewhere"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://models.example", "x-forwarded-host": "models.example"}, 200),
        ({"origin": "http://models.example", "x-forwarded-host": "models.example, inner"}, 200),
        ({"origin": "http://elsewhere", "x-forwarded-host": "models.example"}, 403),
        ({"origin": "null", "x-forwarded-host": ""}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://elsewhere", "x-forwarded-host": "elsewhere"}, 403),
    ],
)
def test_a_page_of_another_site_cannot_load_a_model(headers: dict[str, str], status: int) -> None:
    served = {"control": ExplicitControl(Commands())}
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    assert ask("POST", "/v2/repository/models/m/load", b"", served, **named).status == status


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=lambda route: route.path)
def test_a_page_of_another_site_cannot_change_anything(route: ApiRoute) -> None:
    path = route.path.format(model="good", version="1", region="r", repository="a")
    answer = ask("POST", path, b"{}", origin="http://elsewhere")
    refused = (answer.status, answer.body) == (403, b'{"error":"a page of another site may not use this API"}')
    assert refused == (route.category != "inference")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("stream/versions/9", 404, "Request for unknown model: 'stream' version 9 is not found"),
        ("gone", 404, "Request for unknown model: 'gone' has no available versions"),
        ("gone/versions/1", 503, "Request for unknown model: 'gone' version 1 is not at ready state"),
    ],
)
def test_a_decoupled_model_that_is_not_there_is_told_so_by_infer_too(path: str, status: int, error: str) -> None:
    async def run() -> Answer:
        served = Served()
        decoupled = "model_transaction_policy { decoupled: true }"
        served.service.models.directory.models["gone"] = entry("gone", (1, UNAVAILABLE, "no weights"), more=decoupled)
        return await served.request("POST", f"/v2/models/{path}/infer", b"{}")

    answer = asyncio.run(run())
    assert (answer.status, answer.error) == (status, error)


def test_generate_reaches_a_decoupled_model() -> None:
    async def run() -> None:
        served = Served()
        served.target.hold = True
        served.loop.call_soon(lambda: served.target.sinks[0].on_response(None, (b'{"outputs":[]}',), True))
        answer = await served.request("POST", "/v2/models/stream/generate_stream", b'{"X":[1,2]}')
        assert answer.status == 200
        assert json.loads(served.target.bodies[0])["inputs"][0]["shape"] == [1, 2]

    asyncio.run(run())


def test_inference_goes_past_the_application() -> None:
    async def run() -> None:
        served = Served()
        for path in ("good/infer", "good/versions/2/infer?x=y", "a%2Fb/infer"):
            assert (await served.request("POST", f"/v2/models/{path}", b"{}")).body == b"{}"
        answer = await served.request("POST", "/v2/models/half/versions/2/infer", b"{}")
        assert (answer.status, answer.error) == (
            503,
            "Request for unknown model: 'half' version 2 is not at ready state",
        )
        assert served.counters.totals.rows[Label(MODEL, "half", 2)].other_count == 1  # type: ignore[attr-defined]

    asyncio.run(run())


def test_regions_are_registered_and_forgotten() -> None:
    async def run() -> None:
        served = Served(allow_client_shm=True)
        base = "/v2/systemsharedmemory"
        region = {"key": key, "offset": 0, "byte_size": 64}
        assert (
            await served.request("POST", f"{base}/region/a%20b/register", json.dumps(region).encode())
        ).status == 200
        row = {"name": "a b", **region}
        assert (await served.request("GET", f"{base}/status")).json == [row]
        assert (await served.request("GET", f"{base}/region/a%20b/status")).json == [row]
        answer = await served.request("POST", f"{base}/region/a%20b/register", json.dumps(region).encode())
        assert (answer.status, answer.error) == (400, "shared memory region 'a b' already in manager")
        assert (await served.request("POST", f"{base}/region/nope/unregister")).status == 200
        assert (await served.request("POST", f"{base}/unregister")).status == 200
        assert (await served.request("GET", f"{base}/status")).json == []

    key = f"eagleray_test_{secrets.token_hex(4)}"
    memory = SharedMemory(key, create=True, size=64)
    try:
        asyncio.run(run())
    finally:
        memory.close()
        memory.unlink()


BAD_REGIONS = {
    "no key": ({"byte_size": 1}, 400, "Shared memory register request has no 'key' field"),
    "no size": ({"key": "/x"}, 400, "Shared memory register request has no 'byte_size' field"),
    "size of a wrong type": (
        {"key": "/x", "byte_size": "1"},
        400,
        "Unable to parse 'byte_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    "not there": (
        {"key": "/eagleray_nope", "byte_size": 1},
        500,
        "Unable to open shared memory region: '/eagleray_nope'",
    ),
}


@pytest.mark.parametrize(("body", "status", "text"), BAD_REGIONS.values(), ids=BAD_REGIONS.keys())
def test_bad_registrations_are_refused(body: object, status: int, text: str) -> None:
    answer = ask("POST", "/v2/systemsharedmemory/region/r/register", body, {"allow_client_shm": True})
    assert (answer.status, answer.error) == (status, text)


def test_cuda_shared_memory_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libno-such-driver.so")
    forget_driver()
    served = {"allow_client_shm": True}
    answer = ask("POST", "/v2/cudasharedmemory/region/r/register", {}, served)
    assert (answer.status, answer.error) == (
        400,
        "failed to register CUDA shared memory region: 'r', GPUs not supported",
    )
    assert ask("GET", "/v2/cudasharedmemory/status", b"", served).json == []
    assert ask("POST", "/v2/cudasharedmemory/unregister", b"", served).status == 200
