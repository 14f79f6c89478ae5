"""Triton's answers over HTTP, case by case; and no route without a case."""

import re

import pytest

from app.http.routes import ROUTES, RouteTable
from tests.conformance.http_case import HttpCase
from tests.conformance.http_cases import CASES
from tests.serving import Client

TABLE = RouteTable()


@pytest.mark.ray
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answers_as_triton(case: HttpCase, client: Client) -> None:
    case.check(client)
    # The connection goes on, whatever was asked.
    assert client.get("/v2/health/live").status == 200


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_and_method_has_a_case(route) -> None:
    for case in CASES:
        match = TABLE.match(case.path.partition("?")[0])
        if match is not None and match.path == route.path and case.method == route.method:
            return
    raise AssertionError("no case for it in http_cases.py")


def test_cases_are_many_distinct_and_from_the_catalog() -> None:
    assert len(CASES) >= 120
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(re.fullmatch(r"[4-8]\.\d+", case.section) for case in CASES)
