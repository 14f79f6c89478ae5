"""What Triton answers over HTTP, as data; the models are those of `tests.repositories`."""

from tests.conformance.http_case import HttpCase as Case
from tests.conformance.http_control_cases import REPOSITORY, SETTINGS, SHARED_MEMORY
from tests.conformance.http_inference_cases import BINARY, COMPRESSION, GENERATE, INFERENCE

NOT_ALLOWED = "Method Not Allowed"
NO_VERSION = "failed to get model version from specified version string '{}' (details: stol), version should be an integral value > 0"
UNKNOWN = "Request for unknown model: 'nope' is not found"


def refused(method: str, path: str) -> Case:
    return Case(f"{method} on {path}", "4.1", method, path, 405, error=NOT_ALLOWED)


def lost(method: str, path: str) -> Case:
    return Case(f"{method} {path} is no route", "4.1", method, path, 404, error="Not Found")


HEALTH = (
    Case("live", "4.1", "GET", "/v2/health/live", sent=b""),
    Case("live for KubeRay", "4.1", "GET", "/-/healthz", sent=b"", deviates="a route of our own"),
    Case("not ready, as some models are broken", "4.1", "GET", "/v2/health/ready", 400, sent=b""),
    Case("query strings are ignored", "4.1", "GET", "/v2/health/live?a=b", sent=b""),
    Case("model ready", "4.1", "GET", "/v2/models/floats/ready", sent=b""),
    Case("version ready", "4.1", "GET", "/v2/models/floats/versions/1/ready", sent=b""),
    *(
        Case(f"not ready: {path}", "4.1", "GET", f"/v2/models/{path}/ready", 400, error="Model version not ready")
        for path in ("nope", "floats/versions/7", "broken_initialize", "broken_initialize/versions/1")
    ),
)

METADATA = (
    Case(
        "server metadata",
        "4.3",
        "GET",
        "/v2",
        has={"name": "triton"},
        headers_back={"content-type": "application/json"},
    ),
    Case(
        "model metadata",
        "4.3",
        "GET",
        "/v2/models/simple",
        has={
            "name": "simple",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": n, "datatype": "INT32", "shape": [-1, 16]} for n in ("INPUT0", "INPUT1")],
            "outputs": [{"name": n, "datatype": "INT32", "shape": [-1, 16]} for n in ("OUTPUT0", "OUTPUT1")],
        },
    ),
    Case("version metadata", "4.3", "GET", "/v2/models/simple/versions/1", has={"versions": ["1"]}),
    Case("shape without batches", "4.3", "GET", "/v2/models/floats", has={"inputs": [{"shape": [-1]}]}),
    Case("platform of the Python backend", "4.3", "GET", "/v2/models/strings", has={"platform": "python"}),
    Case("quoted name", "4.1", "GET", "/v2/models/%66loats", has={"name": "floats"}),
    Case("metadata of unknown", "4.2", "GET", "/v2/models/nope", 404, error=UNKNOWN),
    Case(
        "metadata of unknown version",
        "4.2",
        "GET",
        "/v2/models/simple/versions/9",
        404,
        error="Request for unknown model: 'simple' version 9 is not found",
    ),
    *(
        Case(
            f"version {number} is too large, {what or 'metadata'}",
            "4.2",
            method,
            f"/v2/models/floats/versions/{number}{what}",
            400,
            body=body,
            error=NO_VERSION.format(number),
        )
        for number in (2**63, 10**19)
        for method, what, body in (
            ("GET", "", None),
            ("GET", "/ready", None),
            ("POST", "/infer", {}),
            ("POST", "/generate", {}),
        )
    ),
    Case(
        "traversal is just a name",
        "4.2",
        "GET",
        "/v2/models/..%2F..%2Fetc",
        404,
        error="Request for unknown model: '../../etc' is not found",
    ),
    Case("config", "4.1", "GET", "/v2/models/simple/config", has={"name": "simple", "max_batch_size": 8}),
    Case("config of version", "4.1", "GET", "/v2/models/simple/versions/1/config", has={"name": "simple"}),
    Case("config of unknown", "4.2", "GET", "/v2/models/nope/config", 404, error=UNKNOWN),
    Case(
        "documentation",
        "4.1",
        "GET",
        "/v2/docs",
        headers_back={"content-type": "text/html; charset=utf-8"},
        deviates="ours",
    ),
    Case("document", "4.1", "GET", "/v2/docs/openapi.json", has={"openapi": "3.1.0"}, deviates="ours"),
    Case("examples", "4.1", "GET", "/v2/docs/examples", deviates="ours"),
    Case("console", "4.1", "GET", "/", headers_back={"content-type": "text/html; charset=utf-8"}, deviates="ours"),
    Case("file of the console", "4.1", "GET", "/console/main.js", deviates="ours"),
    Case("no file of the console", "4.1", "GET", "/console/x", 404, error="Not Found", deviates="ours"),
    Case("state", "4.1", "GET", "/v2/console/state", has={"server": {"name": "triton"}}, deviates="ours"),
    Case("plan", "4.1", "GET", "/v2/console/plan", has={"unplaced": {}}, deviates="ours"),
    Case(
        "model of the console",
        "4.1",
        "GET",
        "/v2/console/models/simple",
        has={"name": "simple", "max_batch_size": 8, "may_load": False},
        deviates="ours",
    ),
    Case("unknown model of the console", "4.2", "GET", "/v2/console/models/nope", 404, error=UNKNOWN, deviates="ours"),
    Case("log of the console", "4.1", "GET", "/v2/console/models/simple/log", deviates="ours"),
    Case("doctor", "4.1", "GET", "/v2/doctor", deviates="ours"),
)

STATISTICS = (
    Case("statistics of all", "7.1", "GET", "/v2/models/stats"),
    Case(
        "statistics of a model",
        "7.1",
        "GET",
        "/v2/models/flags/stats",
        has={"model_stats": [{"name": "flags", "version": "1"}]},
    ),
    Case(
        "statistics of a version",
        "7.1",
        "GET",
        "/v2/models/flags/versions/1/stats",
        has={"model_stats": [{"version": "1"}]},
    ),
    Case(
        "statistics of unknown",
        "7.1",
        "GET",
        "/v2/models/nope/stats",
        400,
        error="requested model 'nope' is not available",
    ),
    Case(
        "statistics of unknown version",
        "7.1",
        "GET",
        "/v2/models/flags/versions/5/stats",
        400,
        error="requested model version is not available for model 'flags'",
    ),
)

ROUTING = (
    *(refused("POST", path) for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/floats", "/v2/models/floats/config", "/v2/models/floats/ready", "/v2/systemsharedmemory/status")),
    *(refused("GET", path) for path in ("/v2/models/floats/infer", "/v2/models/floats/versions/1/infer", "/v2/models/strings/generate", "/v2/models/strings/generate_stream", "/v2/repository/index", "/v2/repository/models/floats/load", "/v2/systemsharedmemory/unregister")),
    *(refused("HEAD", path) for path in ("/v2", "/v2/health/live", "/v2/models/floats/infer")),
    *(refused("OPTIONS", path) for path in ("/v2", "/v2/models/floats/infer")),
    *(refused("DELETE", path) for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/floats")),
    *(lost("GET", path) for path in ("/v1", "/v2/", "/v2/health", "/v2/health/live/", "/v2/models", "/v2/models/", "/v2/models/floats/", "/v2/models/floats/versions", "/v2/models/floats/versions/x", "/v2/models/floats/versions/-1/ready", "/metrics", "//v2", "/v2/../v2", "/v2%2Fhealth%2Flive")),
    *(lost("POST", path) for path in ("/v2/models/floats/infer/", "/v2/models/floats/versions/x/infer", "/v2/models/floats/versions/infer", "/v2/repository/models/floats", "/v2/models/floats/run")),
)  # fmt: skip

CASES = (
    *HEALTH,
    *METADATA,
    *STATISTICS,
    *INFERENCE,
    *BINARY,
    *COMPRESSION,
    *GENERATE,
    *REPOSITORY,
    *SETTINGS,
    *SHARED_MEMORY,
    *ROUTING,
)
