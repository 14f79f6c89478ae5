import pytest

from app.edge.restricted_api import CATEGORIES, PUBLIC, RestrictedApis
from app.http.routes import ROUTES, RouteTable
from protocol.errors import Restricted


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_and_method_has_a_category(route) -> None:
    assert route.category in (*CATEGORIES, PUBLIC)


def test_a_category_can_be_restricted_together_with_others() -> None:
    restricted = RestrictedApis(["health,metadata:admin-key=a=b", "logging:log-key=c"])
    restricted.check("inference", [])
    restricted.check("metadata", [(b"admin-key", b"a=b")])
    for headers in ([], [(b"admin-key", b"a")], [(b"log-key", b"c")], [(b"admin-key", b"a=b")] * 2):
        with pytest.raises(Restricted, match=r"^This API is restricted, expecting header 'admin-key'$"):
            restricted.check("metadata", headers)
    assert Restricted("").http_status == 403


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (["health"], "expected <category>"),
        (["health:key"], "expected <category>"),
        (["health:=value"], "expected <category>"),
        (["health:key="], "expected <category>"),
        (["wealth:key=value"], "unknown restricted api 'wealth'"),
        (
            ["health:a=b", "metadata,health:c=d"],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
    ],
)
def test_malformed_entries_are_refused(entries: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RestrictedApis(entries)


NO_ROUTES = [
    "/console",
    "/console/",
    "/console/a/b",
    "/v2/",
    "//v2",
    "/v2/../v2",
    "/V2",
    "/v2%2Fhealth%2Flive",
    "/v2/health/live/",
    "/v2/models/a/versions/x",
    "/v2/models/a/versions/-1",
    "/v2/models/a/versions/1a",
    "/v2/models/a/versions/1/trace/setting",
    "/v2/models//ready",
    "/v2/models/a/b/ready",
    "/v2/models/stats/x",
    "/v2/trace/settings",
    "http://evil/v2",
]


@pytest.mark.parametrize("path", NO_ROUTES)
def test_only_the_exact_path_is_a_route(path: str) -> None:
    assert RouteTable().match(path) is None


def test_an_encoded_slash_stays_in_its_segment() -> None:
    match = RouteTable().match("/v2/models/a%2Fready")
    assert match is not None
    assert match.endpoints == {"GET": "model_metadata"}
    assert match.parameters == {"model": "a%2Fready"}


def test_statistics_of_all_models_are_no_model() -> None:
    match = RouteTable().match("/v2/models/stats")
    assert match is not None and match.category == "statistics"
