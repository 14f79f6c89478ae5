"""The table of HTTP routes: what each is called, which methods it takes, and the category that can be restricted.

Routing, the restriction of APIs and the document at `/v2/docs` all read this one table, so that no route can be left
out of any of them. Paths are matched as they came on the wire, before percent-decoding, so that an encoded slash never
becomes part of another route; a query string plays no role.
"""

import re
from dataclasses import dataclass
from typing import Final

from app.edge.restricted_api import (
    HEALTH,
    INFERENCE,
    LOGGING,
    METADATA,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    PUBLIC,
    SHARED_MEMORY,
    STATISTICS,
    TRACE,
)


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One method on one path; `endpoint` is the name of what answers.

    `also` is a second category, which it tells of: where that is restricted, it asks for that header too.
    """

    method: str
    path: str
    category: str
    endpoint: str
    also: str = ""


def _per_model(method: str, path: str, category: str, endpoint: str) -> tuple[ApiRoute, ApiRoute]:
    model = "/v2/models/{model}"
    return (
        ApiRoute(method, model + path, category, endpoint),
        ApiRoute(method, model + "/versions/{version}" + path, category, endpoint),
    )


def _regions(kind: str) -> tuple[ApiRoute, ...]:
    base = f"/v2/{kind}sharedmemory"
    return (
        ApiRoute("GET", base + "/status", SHARED_MEMORY, f"{kind}_status"),
        ApiRoute("GET", base + "/region/{region}/status", SHARED_MEMORY, f"{kind}_status"),
        ApiRoute("POST", base + "/region/{region}/register", SHARED_MEMORY, f"{kind}_register"),
        ApiRoute("POST", base + "/unregister", SHARED_MEMORY, f"{kind}_unregister"),
        ApiRoute("POST", base + "/region/{region}/unregister", SHARED_MEMORY, f"{kind}_unregister"),
    )


ROUTES: Final = (
    ApiRoute("GET", "/v2", METADATA, "server_metadata"),
    ApiRoute("GET", "/v2/health/live", HEALTH, "live"),
    ApiRoute("GET", "/v2/health/ready", HEALTH, "ready"),
    ApiRoute("GET", "/-/healthz", HEALTH, "live"),
    # Before the routes of a model: one that is called `stats` cannot be asked for its metadata.
    ApiRoute("GET", "/v2/models/stats", STATISTICS, "statistics"),
    *_per_model("GET", "", METADATA, "model_metadata"),
    *_per_model("GET", "/ready", HEALTH, "model_ready"),
    *_per_model("GET", "/config", MODEL_CONFIG, "model_config"),
    *_per_model("GET", "/stats", STATISTICS, "statistics"),
    *_per_model("POST", "/infer", INFERENCE, "inference"),
    *_per_model("POST", "/generate", INFERENCE, "inference"),
    *_per_model("POST", "/generate_stream", INFERENCE, "inference"),
    ApiRoute("GET", "/v2/models/{model}/trace/setting", TRACE, "trace_settings"),
    ApiRoute("POST", "/v2/models/{model}/trace/setting", TRACE, "update_trace_settings"),
    ApiRoute("GET", "/v2/trace/setting", TRACE, "trace_settings"),
    ApiRoute("POST", "/v2/trace/setting", TRACE, "update_trace_settings"),
    ApiRoute("GET", "/v2/models/{model}/logging", LOGGING, "log_settings"),
    ApiRoute("POST", "/v2/models/{model}/logging", LOGGING, "update_log_settings"),
    ApiRoute("GET", "/v2/logging", LOGGING, "log_settings"),
    ApiRoute("POST", "/v2/logging", LOGGING, "update_log_settings"),
    ApiRoute("POST", "/v2/repository/index", MODEL_REPOSITORY, "index"),
    ApiRoute("POST", "/v2/repository/{repository}/index", MODEL_REPOSITORY, "index"),
    ApiRoute("POST", "/v2/repository/register", MODEL_REPOSITORY, "register"),
    ApiRoute("POST", "/v2/repository/unregister", MODEL_REPOSITORY, "unregister"),
    ApiRoute("GET", "/v2/repository/registered", MODEL_REPOSITORY, "registered"),
    ApiRoute("POST", "/v2/repository/models/{model}/load", MODEL_REPOSITORY, "load"),
    ApiRoute("POST", "/v2/repository/models/{model}/unload", MODEL_REPOSITORY, "unload"),
    ApiRoute("POST", "/v2/repository/{repository}/models/{model}/load", MODEL_REPOSITORY, "load"),
    ApiRoute("POST", "/v2/repository/{repository}/models/{model}/unload", MODEL_REPOSITORY, "unload"),
    ApiRoute("GET", "/v2/repository/models/{model}/traffic", MODEL_REPOSITORY, "traffic"),
    ApiRoute("POST", "/v2/repository/models/{model}/traffic", MODEL_REPOSITORY, "change_traffic"),
    # It tells where an attack would find something: it is for those who manage.
    ApiRoute("GET", "/v2/doctor", MODEL_REPOSITORY, "doctor"),
    *_regions("system"),
    *_regions("cuda"),
    ApiRoute("GET", "/v2/docs", METADATA, "docs_page"),
    ApiRoute("GET", "/v2/docs/openapi.json", METADATA, "docs_document"),
    ApiRoute("GET", "/v2/docs/examples", METADATA, "docs_examples"),
    ApiRoute("GET", "/", PUBLIC, "console_page"),
    ApiRoute("GET", "/console/{file}", PUBLIC, "console_file"),
    # States with their reasons, and shares of the traffic, are in the repository's API.
    ApiRoute("GET", "/v2/console/state", STATISTICS, "console_state", also=MODEL_REPOSITORY),
    ApiRoute("GET", "/v2/console/plan", METADATA, "console_plan"),
    ApiRoute("GET", "/v2/console/models/{model}", MODEL_CONFIG, "console_model", also=MODEL_REPOSITORY),
    # What a model logs may be anything: it is for those who manage.
    ApiRoute("GET", "/v2/console/models/{model}/log", MODEL_REPOSITORY, "console_log"),
)


@dataclass(frozen=True, slots=True)
class Match:
    """What a path is: its route and categories, the endpoint of each method, and its parameters, percent-encoded."""

    path: str
    category: str
    also: str
    endpoints: dict[str, str]
    parameters: dict[str, str]


class RouteTable:
    """Finds the routes of a path."""

    def __init__(self) -> None:
        self._fixed: dict[str, Match] = {}
        self._patterns: list[tuple[re.Pattern[str], Match]] = []
        by_path: dict[str, Match] = {}
        for route in ROUTES:
            match = by_path.get(route.path)
            if match is None:
                match = by_path[route.path] = Match(route.path, route.category, route.also, {}, {})
                if "{" in route.path:
                    self._patterns.append((_pattern(route.path), match))
                else:
                    self._fixed[route.path] = match
            assert (match.category, match.also) == (route.category, route.also), f"{route.path} has two categories"
            match.endpoints[route.method] = route.endpoint

    def match(self, path: str) -> Match | None:
        """Return what a path is, None when it is no route."""
        found = self._fixed.get(path)
        if found is not None:
            return found
        for pattern, match in self._patterns:
            given = pattern.fullmatch(path)
            if given is not None:
                return Match(match.path, match.category, match.also, match.endpoints, given.groupdict())
        return None


def _pattern(path: str) -> re.Pattern[str]:
    pattern = re.escape(path).replace(r"\{version\}", "(?P<version>[0-9]+)")
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", pattern))


ROUTE_TABLE: Final = RouteTable()
