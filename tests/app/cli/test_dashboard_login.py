from collections.abc import Iterator

import pytest

from app.cli.dashboard_login import DashboardLogin
from tests.serving import Client


@pytest.fixture
def login() -> Iterator[DashboardLogin]:
    opened = DashboardLogin("127.0.0.1:8265", "secret")
    yield opened
    opened.close()


def get(url: str, path: str | None = None) -> tuple[int, dict[str, str]]:
    address, _, own_path = url.removeprefix("http://").partition("/")
    with Client(address) as client:
        answer = client.get(f"/{own_path}" if path is None else path)
        return answer.status, answer.headers


def test_url_sets_the_dashboards_cookie_and_goes_there(login: DashboardLogin) -> None:
    status, headers = get(login.url)
    assert (status, headers["location"]) == (302, "http://127.0.0.1:8265/#/serve")
    assert headers["set-cookie"] == "ray-authentication-token=secret; Path=/; HttpOnly; SameSite=Strict"


@pytest.mark.parametrize("path", ["/", "/else", "/favicon.ico"])
def test_who_does_not_know_the_url_gets_nothing(login: DashboardLogin, path: str) -> None:
    status, headers = get(login.url, path)
    assert status == 404
    assert "set-cookie" not in headers


def test_url_does_not_hold_the_token(login: DashboardLogin) -> None:
    assert "secret" not in login.url
