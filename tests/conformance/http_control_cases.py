"""The repository, settings and shared memory, as data."""

import json
from typing import Any

from tests.conformance.http_case import HttpCase as Case

UNKNOWN = "Request for unknown model: 'nope' is not found"
NO_REPOSITORY_NAME = "'repository_name' specification is not supported"
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
NO_SHM = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."

_ENDS = {"ready": 1}, {"ready": "yes"}, {"ready": None}

REPOSITORY = (
    Case("index", "4.12", "POST", "/v2/repository/index", headers_back={"content-type": "application/json"}),
    Case("index of a repository", "4.12", "POST", "/v2/repository/any/index"),
    Case("index of what is ready", "4.12", "POST", "/v2/repository/index", body={"ready": True}),
    *(
        Case(
            f"index with {json.dumps(body)}",
            "4.12",
            "POST",
            "/v2/repository/index",
            400,
            body=body,
            error="Invalid value for 'ready': expected a boolean",
        )
        for body in _ENDS
    ),
    *(
        Case(
            f"{verb} a repository",
            "4.12",
            "POST",
            f"/v2/repository/{verb}",
            501,
            body={"repository": "/more"},
            error=f"repository {verb.removesuffix('er')}ration is not allowed if model control mode is not EXPLICIT",
            deviates="a route of our own",
        )
        for verb in ("register", "unregister")
    ),
    Case(
        "list registered repositories",
        "4.12",
        "GET",
        "/v2/repository/registered",
        501,
        error="repositories are not registered if model control mode is not EXPLICIT",
        deviates="a route of our own",
    ),
    Case("load", "4.12", "POST", "/v2/repository/models/floats/load", 503, error=NO_CONTROL),
    Case(
        "load unknown",
        "4.12",
        "POST",
        "/v2/repository/models/nope/load",
        503,
        body={"parameters": {}},
        error=NO_CONTROL,
    ),
    Case(
        "load from a repository", "4.12", "POST", "/v2/repository/r/models/floats/load", 501, error=NO_REPOSITORY_NAME
    ),
    Case(
        "unload of a repository", "4.12", "POST", "/v2/repository/r/models/floats/unload", 501, error=NO_REPOSITORY_NAME
    ),
    Case("unload", "4.12", "POST", "/v2/repository/models/floats/unload", 503, error=NO_CONTROL),
    Case(
        "unload with dependents",
        "4.12",
        "POST",
        "/v2/repository/models/floats/unload",
        503,
        body={"parameters": {"unload_dependents": True}},
        error=NO_CONTROL,
    ),
    Case(
        "traffic",
        "4.12",
        "GET",
        "/v2/repository/models/floats/traffic",
        has={"model": "floats", "shares": {"1": 1.0}},
        deviates="a route of our own",
    ),
    Case(
        "traffic of unknown",
        "4.12",
        "GET",
        "/v2/repository/models/nope/traffic",
        404,
        error=UNKNOWN,
        deviates="a route of our own",
    ),
    Case(
        "traffic of unknown, changed",
        "4.12",
        "POST",
        "/v2/repository/models/nope/traffic",
        404,
        body={"weights": {"1": 1}},
        error=UNKNOWN,
        deviates="a route of our own",
    ),
)

_TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}


def trace(id: str, body: Any, error: str, status: int = 400) -> Case:
    return Case(id, "4.13", "POST", "/v2/trace/setting", status, body=body, error=error)


SETTINGS = (
    Case("trace settings", "4.13", "GET", "/v2/trace/setting", has=_TRACE),
    Case("trace settings of a model", "4.13", "GET", "/v2/models/floats/trace/setting", has=_TRACE),
    Case(
        "trace settings of unknown",
        "4.13",
        "GET",
        "/v2/models/nope/trace/setting",
        400,
        error="Request for unknown model : nope",
    ),
    Case(
        "trace settings of a version",
        "4.13",
        "GET",
        "/v2/models/floats/versions/1/trace/setting",
        404,
        error="Not Found",
    ),
    Case(
        "trace rate of a model",
        "4.13",
        "POST",
        "/v2/models/floats/trace/setting",
        body={"trace_rate": "7"},
        has={"trace_rate": "7"},
    ),
    Case(
        "trace rate cleared",
        "4.13",
        "POST",
        "/v2/models/floats/trace/setting",
        body={"trace_rate": None},
        has={"trace_rate": "1000"},
    ),
    Case(
        "trace level",
        "4.13",
        "POST",
        "/v2/trace/setting",
        body={"trace_level": ["TIMESTAMPS"]},
        has={"trace_level": ["TIMESTAMPS"]},
    ),
    Case(
        "trace level cleared",
        "4.13",
        "POST",
        "/v2/trace/setting",
        body={"trace_level": None},
        has={"trace_level": ["OFF"]},
    ),
    trace("trace rate no number", {"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
    trace(
        "trace rate out of range",
        {"trace_rate": "4294967296"},
        "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
    ),
    trace("trace count", {"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    trace("trace level twice", {"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
    trace("trace file", {"trace_file": "x"}, "trace file location can not be updated through network protocol", 501),
    Case(
        "log settings",
        "4.13",
        "GET",
        "/v2/logging",
        has={"log_info": True, "log_verbose_level": 0, "log_format": "default"},
    ),
    Case("log settings unchanged", "4.13", "POST", "/v2/logging", body={}, has={"log_info": True}),
    Case("log format", "4.13", "POST", "/v2/logging", body={"log_format": "ISO8601"}, has={"log_format": "ISO8601"}),
    Case(
        "log format back", "4.13", "POST", "/v2/logging", body={"log_format": "default"}, has={"log_format": "default"}
    ),
    Case(
        "unknown log format",
        "4.13",
        "POST",
        "/v2/logging",
        503,
        body={"log_format": "x"},
        error="invalid argument for --log_format, got: x",
    ),
    Case(
        "log file",
        "4.13",
        "POST",
        "/v2/logging",
        501,
        body={"log_file": "x"},
        error="log file location can not be updated through network protocol",
    ),
    Case(
        "log switch of a wrong type",
        "4.13",
        "POST",
        "/v2/logging",
        400,
        body={"log_info": "on"},
        error="Unable to parse 'log_info': attempt to access JSON non-boolean as boolean",
    ),
    Case(
        "log level of a model",
        "4.13",
        "POST",
        "/v2/models/floats/logging",
        body={"log_verbose_level": 1},
        has={"log_verbose_level": 1, "log_info": True},
    ),
    Case("log levels of a model", "4.13", "GET", "/v2/models/floats/logging", has={"log_verbose_level": 1}),
    Case(
        "log level of a model cleared",
        "4.13",
        "POST",
        "/v2/models/floats/logging",
        body={"log_verbose_level": None},
        has={"log_verbose_level": 0},
    ),
    Case(
        "log format of a model",
        "4.13",
        "POST",
        "/v2/models/floats/logging",
        501,
        body={"log_format": "json"},
        error="'log_format' can not be set for a single model",
    ),
    Case(
        "log levels of an unknown model",
        "4.13",
        "GET",
        "/v2/models/nope/logging",
        404,
        error=UNKNOWN,
    ),
)

_REGION = {"key": "/x", "byte_size": 16}

SHARED_MEMORY = (
    *(Case(f"{kind} status", "4.10", "GET", f"/v2/{kind}sharedmemory/status", has=[]) for kind in ("system", "cuda")),
    *(
        Case(
            f"{kind} status of unknown",
            "4.10",
            "GET",
            f"/v2/{kind}sharedmemory/region/r/status",
            404,
            error=f"Unable to find {kind} shared memory region: 'r'",
        )
        for kind in ("system", "cuda")
    ),
    *(
        Case(f"{kind} {path}", "4.10", "POST", f"/v2/{kind}sharedmemory/{path}", 501, body=_REGION, error=NO_SHM)
        for kind in ("system", "cuda")
        for path in ("region/r/register", "region/r/unregister", "unregister")
    ),
    Case(
        "input in an unknown region",
        "4.10",
        "POST",
        "/v2/models/floats/infer",
        404,
        body={
            "inputs": [
                {
                    "name": "X",
                    "datatype": "FP32",
                    "shape": [2],
                    "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8},
                }
            ]
        },
        error="Unable to find shared memory region: 'r'",
    ),
)
